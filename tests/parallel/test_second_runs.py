"""The second run of a task is the first one again, or an error."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import tasks  # noqa: E402
from comparison import equal_in_workers, leaves  # noqa: E402

from pytest_gradguard.parallel import Parallel, UnsupportedGradientError, delayed  # noqa: E402


def test_arguments_are_those_of_the_forward_pass() -> None:
    def program(parallel: Any) -> Any:
        w, x, y = torch.zeros(1000, requires_grad=True), np.arange(1000.0), np.arange(1000.0)
        listed = [y]

        def late() -> Any:
            for k in range(2):
                x[:] = x[::-1] * (k + 1)
                yield delayed(tasks.times)(w, x)
                yield delayed(tasks.times)(w, {"x": listed})

        outs = parallel()(late())
        x[:], y[:], listed[0] = 0, 1, None
        sum(out.sum() for out in outs).backward()
        return [w.grad]

    equal_in_workers(program)


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_memory_that_results_share_is_refused_once_changed(as_tensor: bool, size: int) -> None:
    w, x = torch.zeros(size, requires_grad=True), np.arange(size, dtype="float32")
    task, given = (tasks.polynomial, torch.from_numpy(x)) if as_tensor else (tasks.times_alias, x)
    (out,) = Parallel(n_jobs=2)([delayed(task)(w, given)])
    x[:] = x[::-1].copy()
    with pytest.raises(UnsupportedGradientError, match="was changed in place"):
        out.sum().backward()


@pytest.mark.parametrize("task", ["shuffled", "masked"])
def test_results_that_differ_a_little_in_the_second_run_are_refused(task: str) -> None:
    w = torch.ones(1000, requires_grad=True)
    given = (torch.arange(10_000.0).reshape(10, 1000),) if task == "shuffled" else ()
    (out,) = Parallel(n_jobs=2)([delayed(getattr(tasks, task))(w, *given)])
    with pytest.raises(UnsupportedGradientError, match="computed something else when it ran again"):
        out.pow(2).sum().backward()


def test_the_order_of_a_set_counts() -> None:
    named = {str(k): torch.tensor(float(k), requires_grad=True) for k in range(8)}
    outs = Parallel(n_jobs=2)(delayed(tasks.in_order_of)(named, set(named)) for _ in range(4))
    try:
        sum(out.pow(2).sum() for out in outs).backward()
    except UnsupportedGradientError:
        return
    # every second run found a worker that orders sets alike
    assert [one.grad.item() for one in named.values()] == [8.0 * k for k in range(8)]


def test_what_may_differ_and_generators_that_are_sent() -> None:
    def program(parallel: Any) -> Any:
        (w,) = leaves(3)
        ((loss, _),) = parallel()([delayed(tasks.timed)(w)])
        one, other = torch.Generator().manual_seed(1), np.random.default_rng(1)
        (out,) = parallel()([delayed(tasks.with_generators)(w, one, other)])
        (loss + out.exp().sum()).pow(2).backward()
        return [w.grad]

    equal_in_workers(program)


def test_random_numbers_are_the_same_in_the_backward_pass() -> None:
    x = torch.ones(200, requires_grad=True)
    outs = Parallel(n_jobs=2)(delayed(tasks.same_mask)(x) for _ in range(3))
    for out in outs:
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, out.detach())


@pytest.mark.parametrize(("draw", "factor"), [(tasks.numpy_draw, 2), (tasks.system_draw, 3)])
def test_unseeded_generators_draw_the_same_in_the_backward_pass(draw: Any, factor: int) -> None:
    w = torch.zeros(200, requires_grad=True)
    results = Parallel(n_jobs=2)(delayed(tasks.unseeded_mask)(w, draw) for _ in range(2))
    ((one, mask), (other, other_mask)) = results
    (one * factor + other * 5 * factor).backward()  # no gradient that was learnt to expect
    assert not torch.equal(mask, other_mask)
    assert torch.equal(w.grad, factor * mask + 5 * factor * other_mask)


@pytest.mark.parametrize("changed", ["leaf", "constant"])
def test_changes_by_data_are_refused(changed: str) -> None:
    x, scale = *leaves(3), torch.full((3,), 2.0)
    (out,) = Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, scale)])
    (x if changed == "leaf" else scale).data.mul_(2)
    with pytest.raises(UnsupportedGradientError, match="was changed in place"):
        out.sum().backward()


def test_changes_between_the_passes_are_refused() -> None:
    x, scale = *leaves(3), torch.full((3,), 2.0)
    (out,) = Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, scale)])
    scale += 1
    with pytest.raises(UnsupportedGradientError, match="`k`, an argument of `polynomial`"):
        out.sum().backward()
    (out,) = Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, 2.0)])
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_results_that_differ_in_the_second_run_are_refused() -> None:
    (x,) = leaves(3)
    (out,) = Parallel(n_jobs=2)([delayed(tasks.guesses)(x)])
    with pytest.raises(UnsupportedGradientError, match="computed something else"):
        out.sum().backward()
