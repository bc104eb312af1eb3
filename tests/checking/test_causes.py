"""Each cause of a wrong gradient in workers and threads, and a program like it that is right."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from pytest_gradguard import GradGuardError, check_gradients

joblib = pytest.importorskip("joblib")
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pytest_gradguard.parallel import Parallel  # noqa: E402

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
HALVES = X.chunk(2)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 1))


def loss_of(model: Any, x: Any) -> Any:
    return model(x).pow(2).mean()


def scored(features: Any) -> Any:
    return features.pow(2).mean()


def gradients_of(model: Any, x: Any) -> tuple[float, list[Any]]:
    loss = loss_of(model, x)
    return float(loss), list(torch.autograd.grad(loss, list(model.parameters())))


def backward(model: Any, x: Any) -> float:
    loss = loss_of(model, x)
    loss.backward()
    return float(loss)


def stepped(model: Any, x: Any) -> Any:
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    return model


def average(model: Any, parts: list[tuple[float, list[Any]]]) -> Any:
    for parameter, *found in zip(model.parameters(), *(part for _, part in parts), strict=True):
        parameter.grad = sum(found) / len(found)
    return sum(loss for loss, _ in parts) / len(parts)


def over(function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return joblib.Parallel(2, **options)(joblib.delayed(function)(*args, one) for one in HALVES)


# -- wrong -----------------------------------------------------------------------------------------


def features_to_workers(model: Any) -> Any:  # GG101
    features = model(X)
    return sum(joblib.Parallel(2)(joblib.delayed(scored)(one) for one in features.chunk(2)))


def a_part_from_workers(model: Any) -> Any:  # GG103
    return loss_of(model, X) + sum(over(loss_of, model))


def left_in_workers(model: Any) -> Any:  # GG106
    return sum(over(backward, model)) / 2


def replaced(model: Any) -> Any:  # GG112
    (new,) = joblib.Parallel(2)([joblib.delayed(stepped)(model, X)])
    return loss_of(new, X)


def added_in_pool(model: Any) -> Any:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        parts = list(pool.map(gradients_of, [model] * 2, HALVES))
    return 2 * average(model, parts)


def transformed_in_threads(model: Any) -> Any:
    weight = model[0].weight

    def through_threads(weight: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda x: (x @ weight.T).pow(2).mean(), HALVES))

    gradient = torch.func.grad(through_threads)(weight)
    weight.grad = gradient.detach()
    return float(through_threads(weight))


class Counted(torch.autograd.Function):
    """Its backward is called twice a forward: a gradient is counted twice."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient


def counted_twice(model: Any) -> Any:
    return loss_of(model[1:], Counted.apply(model[0](X)))


def lent_and_added(model: Any) -> Any:
    """The second part is added to gradients that the first one lent, and which it still reads."""
    parts = [gradients_of(model, one)[1] for one in HALVES]
    for parameter, one in zip(model.parameters(), parts[0], strict=True):
        parameter.grad = one  # lent
    for parameter, first, second in zip(model.parameters(), *parts, strict=True):
        parameter.grad += second
        parameter.grad += first
    return 2 * loss_of(model, X).detach()


# -- right -----------------------------------------------------------------------------------------


def one_by_one(model: Any) -> Any:
    return sum(loss_of(model, one) for one in HALVES)


def in_threads(model: Any) -> Any:
    return sum(over(loss_of, model, backend="threading"))


def in_plain_threads(model: Any) -> Any:
    model.eval()
    losses: list[Any] = []

    def work(x: Any) -> None:
        losses.append(loss_of(model, x))

    threads = [threading.Thread(target=work, args=(one,)) for one in HALVES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sorted(losses, key=float))


def with_gradients(model: Any) -> Any:
    return sum(Parallel(2)(joblib.delayed(loss_of)(model, one) for one in HALVES))


def gradients_from_workers(model: Any) -> Any:
    return average(model, over(gradients_of, model))


def gradients_from_pool(model: Any) -> Any:
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        return average(model, pool.starmap(gradients_of, [(model, one) for one in HALVES], 1))


def in_data_parallel(model: Any) -> Any:
    return loss_of(nn.DataParallel(model), X)


def accumulated(model: Any) -> Any:
    losses = [loss_of(model, one) / 2 for one in HALVES]
    for loss in losses:
        loss.backward()
    return sum(float(loss) for loss in losses)


def data_from_workers(model: Any) -> Any:
    rows = joblib.Parallel(2)(joblib.delayed(torch.neg)(one) for one in HALVES)
    return loss_of(model, torch.cat(rows))


WRONG = {
    features_to_workers: "GG103",
    a_part_from_workers: "GG103",
    left_in_workers: "GG106",
    replaced: "GG112",
    added_in_pool: None,
    transformed_in_threads: "GG301",
    counted_twice: None,
    lent_and_added: None,
}
RIGHT = (
    one_by_one,
    in_threads,
    in_plain_threads,
    with_gradients,
    gradients_from_workers,
    gradients_from_pool,
    in_data_parallel,
    accumulated,
    data_from_workers,
)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.__name__)
def test_a_wrong_gradient_is_found_and_explained(case: Any, model: Any) -> None:
    with pytest.raises(GradGuardError) as failed:
        check_gradients(lambda: case(model), model)
    first, *explaining = failed.value.findings
    assert first.code == "GG115"
    code = WRONG[case]
    if code is None:
        assert "No finding of the guard explains it." in first.message
    else:
        assert code in {one.code for one in explaining}


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.__name__)
def test_a_right_gradient_is_called_right(case: Any, model: Any) -> None:
    assert check_gradients(lambda: case(model), model).precision == "float64"
