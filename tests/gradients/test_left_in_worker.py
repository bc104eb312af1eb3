"""GG106: gradients that a worker kept, confirmed by an optimizer's step; and what is no such thing.

The same in the words of a watch: which worker has the gradient.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")

import worker_tasks as tasks  # noqa: E402
from joblib import Parallel, delayed  # noqa: E402

from pytest_gradguard import GradGuardError, guard, watch_gradients  # noqa: E402

BACKENDS = ["loky", "multiprocessing"]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tasks.__file__).parent), prepend=":")
    monkeypatch.syspath_prepend(str(Path(tasks.__file__).parent))
    torch.set_num_threads(1)


def model() -> Any:
    return torch.nn.Linear(2, 1)


def run(task: Any, net: Any, backend: str) -> list[Any]:
    return list(Parallel(n_jobs=2, backend=backend)(delayed(task)(net, v) for v in (1.0, 2.0)))


def codes(report: Any) -> set[str]:
    return {finding.code for finding in report.findings}


LEFT = [
    tasks.returns_nothing,
    tasks.returns_the_loss,
    tasks.returns_predictions,
    tasks.steps_its_own_optimizer,
]
CARRIED = [
    tasks.returns_gradients,
    tasks.returns_gradients_in_numpy,
    tasks.returns_gradients_in_one_vector,
    tasks.returns_gradients_in_lists,
    tasks.returns_the_state,
    tasks.returns_the_model,
    tasks.only_evaluates,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", LEFT, ids=lambda task: task.__name__)
def test_an_optimizer_without_gradients_confirms_it(task: Any, backend: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with guard(mode="record") as report:
        run(task, net, backend)
        assert "GG106" not in codes(report)
        line = sys._getframe().f_lineno + 1
        optimizer.step()
    (finding,) = (finding for finding in report.findings if finding.code == "GG106")
    assert finding.severity.label == "error"
    assert finding.location.line == line
    assert finding.details["backend"] == backend
    assert task.__name__ in finding.message
    assert [Path(step.path).name for step in finding.trace] == [
        Path(__file__).name,
        "worker_tasks.py",
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", CARRIED, ids=lambda task: task.__name__)
def test_what_leaves_the_worker_is_legitimate(task: Any, backend: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with guard(mode="record") as report:
        run(task, net, backend)
        optimizer.step()
    assert codes(report) == {"GG107"}


def test_an_optimizer_with_gradients_confirms_nothing() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with guard(mode="record") as report:
        run(tasks.returns_the_loss, net, "loky")
        tasks.loss_of(net, 1.0).backward()
        optimizer.step()
    assert "GG106" not in codes(report)


def test_an_optimizer_of_another_model_confirms_nothing() -> None:
    net, other = model(), model()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with guard(mode="record") as report:
        run(tasks.returns_the_loss, net, "loky")
        optimizer.step()
    assert "GG106" not in codes(report)


def test_what_a_step_has_used_goes_with_its_model() -> None:
    """Of another model, whose parameters have the same ids, it would be no step."""
    from pytest_gradguard.runtime.pitfalls.kept import worker_gradients

    with guard("record") as report:
        for _ in range(3):
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            tasks.loss_of(net, 1.0).backward()
            run(tasks.returns_the_norm, net, "multiprocessing")
            optimizer.step()
            del net, optimizer
        net = model()
        run(tasks.returns_the_norm, net, "multiprocessing")
        assert not worker_gradients._state.used
    assert "GG106" not in codes(report)


def test_threads_keep_nothing() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with guard(mode="record") as report:
        run(tasks.returns_nothing, net, "threading")
        optimizer.step()
    assert report.findings == []


def test_the_hook_on_optimizers_goes_with_the_guard() -> None:
    from torch.optim import optimizer as module

    def names() -> list[Any]:
        return [
            dict(module._global_optimizer_pre_hooks),
            dict(module._global_optimizer_post_hooks),
            torch.nn.Module.zero_grad,
            torch.optim.Optimizer.zero_grad,
            torch.autograd._engine_run_backward,
        ]

    before = names()
    with guard(mode="record"):
        run(tasks.returns_nothing, model(), "loky")
        assert not any(one == other for one, other in zip(names(), before, strict=True))
    assert names() == before


def test_what_an_optimizer_lacks_is_named() -> None:
    net, head = model(), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
    with guard(mode="record") as report:
        run(tasks.returns_the_loss, net, "loky")
        head(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    some, every = (finding for finding in report.findings if finding.code == "GG106")
    assert some.message.startswith(
        "`optimizer.step()` misses a gradient: 2 of its 4 parameters (`net.bias`, `net.weight`) "
        "have no gradient. `returns_the_loss` computed"
    )
    assert (some.details["parameters"], some.details["copies"]) == (4, 2)
    assert every.message.startswith(
        "`optimizer.step()` updates nothing: none of its 2 parameters has a gradient."
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_watch_names_the_worker_that_kept_the_gradient(backend: str) -> None:
    net = model()
    with pytest.raises(GradGuardError) as caught, watch_gradients(net):
        run(tasks.returns_the_loss, net, backend)
    (finding,) = caught.value.findings
    assert finding.details["reason"] == "left-in-worker"
    assert sorted(finding.details["objects"]) == ["bias", "weight"]
    assert "worker_tasks.py" in finding.trace[-1].path


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_watch_names_the_worker_that_cut_the_graph(backend: str) -> None:
    net = model()
    watch = watch_gradients(net).start()
    sum(run(tasks.returns_its_graph, net, backend)).backward()  # type: ignore[union-attr]
    (finding,) = watch.stop()
    assert finding.details["reason"] == "cut-at-worker"
    assert sorted(finding.details["objects"]) == ["bias", "weight"]
    assert "returns_its_graph" in finding.message
    assert Path(finding.location.path).name == Path(__file__).name


def test_a_watch_names_the_cut_of_a_tensor_with_history_and_of_a_dict() -> None:
    x = torch.ones(3, requires_grad=True)
    watch = watch_gradients({"x": x}).start()
    halves = Parallel(n_jobs=2)(delayed(tasks.doubles)(x.clone()) for _ in range(2))
    torch.stack(halves).sum().backward()
    (finding,) = watch.stop()
    assert finding.details["reason"] == "cut-at-worker"

    w = torch.ones(3, requires_grad=True)
    rows = torch.ones(2, 3)
    with guard(mode="record"):
        watch = watch_gradients({"w": w}).start()
        parts = Parallel(n_jobs=2)(delayed(tasks.sums_squares)({"w": w}, row) for row in rows)
        (sum(parts) / 2).backward()
        (finding,) = watch.stop()
    assert finding.details["reason"] == "cut-at-worker"
