"""GG101 and GG107: what goes to a worker, in every form that it can go."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import workers
from joblib import Parallel, delayed, parallel_backend, parallel_config

from pytest_gradguard import Finding, guard
from pytest_gradguard.findings import Severity

PROCESSES = ["loky", "multiprocessing"]


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def found(run: Callable[[], Any]) -> list[Finding]:
    with guard("record") as report:
        run()
    return report.findings


def visible(findings: list[Finding]) -> list[str]:
    return sorted(f.code for f in findings if f.severity >= Severity.WARNING)


@pytest.mark.parametrize("backend", PROCESSES)
@pytest.mark.parametrize("history", [False, True])
def test_a_tensor_that_requires_grad_is_reported_with_its_path(backend: str, history: bool) -> None:
    tensor = leaf() * 2 if history else leaf()
    (finding,) = found(
        lambda: Parallel(2, backend=backend)(delayed(workers.total)(tensor) for _ in range(3))
    )
    assert finding.code == "GG101"
    assert finding.severity is Severity.WARNING
    assert finding.count == 3
    assert finding.details["object"] == "args[0]"
    assert finding.details["direction"] == "argument"
    assert finding.details["backend"] == backend
    assert finding.details["shape"] == [3]
    assert finding.details["dtype"] == "float32"
    assert finding.details["device"] == "cpu"
    assert finding.details["type"] == "Tensor"
    assert finding.details["history"] == ("MulBackward0" if history else None)
    assert finding.location.path == __file__
    assert finding.location.function == "<lambda>"


Pair = collections.namedtuple("Pair", "left right")


class Custom(torch.Tensor):
    """A subclass that would be disturbed by being asked for its attributes."""

    asked: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Slotted:
    __slots__ = ("weights",)

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights


class Cached(torch.nn.Module):
    """A module with a plain tensor that requires grad beside its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.scale = leaf()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


@pytest.mark.parametrize(
    ("make", "path", "direction"),
    [
        (lambda t: delayed(workers.identity)({"a": [1, (t.detach(), {"b": t})]}), None, None),
        (lambda t: delayed(len)([[1, 2, {"k": (0, t)}]]), "args[0][0][2]['k'][1]", "argument"),
        (lambda t: delayed(str)(object=[t]), "kwargs['object'][0]", "argument"),
        (lambda t: delayed(len)(Pair(1, t)), "args[0].right", "argument"),
        (lambda t: delayed(len)(collections.OrderedDict(w=t)), "args[0]['w']", "argument"),
        (lambda t: delayed(len)(collections.deque([t])), "args[0][0]", "argument"),
        (lambda t: delayed(id)(workers.Record(1, t)), "args[0].loss", "argument"),
        (lambda t: delayed(id)(Slotted(t)), "args[0].weights", "argument"),
        (lambda t: delayed(id)(workers.Estimator([t])), "args[0].weights[0]", "argument"),
        (lambda t: delayed(workers.Estimator([t]).score)(1), "self.weights[0]", "capture"),
        (
            lambda t: delayed(functools.partial(workers.total, t))(),
            "partial.args[0]",
            "capture",
        ),
        (
            lambda t: delayed(functools.partial(workers.total, tensor=t))(),
            "partial.keywords['tensor']",
            "capture",
        ),
        (lambda t: delayed(lambda: t.shape[0])(), "closure['t']", "capture"),
        (lambda t: delayed(lambda w=t: w.shape[0])(), "defaults[0]", "capture"),
    ],
)
def test_at_any_depth(
    make: Callable[[torch.Tensor], Any], path: str | None, direction: str
) -> None:
    tensor = leaf()
    findings = found(lambda: Parallel(2)(make(tensor) for _ in range(2)))
    if path is None:  # handed back whole: still a leaf, so no graph is lost on the way back
        assert visible(findings) == ["GG101"]
        return
    (finding,) = findings
    assert (finding.code, finding.details["object"]) == ("GG101", path)
    assert finding.details["direction"] == direction


def test_a_module_with_a_plain_tensor_inside() -> None:
    model = Cached()
    findings = found(lambda: Parallel(2)(delayed(id)(model) for _ in range(2)))
    by_code = {finding.code: finding for finding in findings}
    assert by_code["GG101"].details["object"] == "args[0].scale"
    assert by_code["GG107"].details["object"] == "args[0].layer.weight"
    assert by_code["GG107"].count == 4


def test_a_tensor_subclass_is_seen_and_its_own_code_does_not_run_for_it() -> None:
    tensor = torch.ones(3).as_subclass(Custom).requires_grad_()
    Custom.asked.clear()
    Parallel(2)(delayed(id)(tensor) for _ in range(2))
    unguarded = list(Custom.asked)
    Custom.asked.clear()
    (finding,) = found(lambda: Parallel(2)(delayed(id)(tensor) for _ in range(2)))
    assert Custom.asked == unguarded
    assert finding.code == "GG101"
    assert finding.count == 2
    assert finding.details["type"].endswith("Custom")


@pytest.mark.parametrize("backend", PROCESSES)
def test_what_is_no_finding(backend: str) -> None:
    tensor = leaf()
    model = torch.nn.Linear(3, 3)
    items = [
        tensor.detach(),
        tensor.data,
        torch.ones(3),
        tensor.detach().numpy(),
        model.state_dict(),
        [1, "two", None],
        torch.arange(3),
    ]
    findings = found(lambda: Parallel(2, backend=backend)(delayed(id)(item) for item in items))
    assert findings == []


def test_parameters_are_worth_knowing_only() -> None:
    model = torch.nn.Linear(3, 3)
    (finding,) = found(lambda: Parallel(2)(delayed(workers.train)(model) for _ in range(2)))
    assert finding.code == "GG107"
    assert finding.severity is Severity.INFO
    assert finding.details["object"] == "args[0].weight"
    assert finding.details["type"] == "Parameter"


def test_tensors_are_counted_once_however_many_tasks_get_them() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient)
    by_code = {
        finding.code: finding
        for finding in found(lambda: Parallel(2)(delayed(id)(model) for _ in range(3)))
    }
    assert by_code["GG107"].message.startswith("8 parameters are pickled")
    assert "one of 8 such tensors" in by_code["GG113"].message
    assert by_code["GG107"].count == by_code["GG113"].count == 24


def test_frozen_parameters_are_nothing() -> None:
    model = torch.nn.Linear(3, 3).requires_grad_(False)
    assert found(lambda: Parallel(2)(delayed(id)(model) for _ in range(2))) == []


@pytest.mark.parametrize(
    "parallel",
    [
        lambda: Parallel(n_jobs=2, backend="threading"),
        lambda: Parallel(n_jobs=2, prefer="threads"),
        lambda: Parallel(n_jobs=2, require="sharedmem"),
        lambda: Parallel(n_jobs=1),
        lambda: Parallel(),
        lambda: Parallel(n_jobs=1, backend="multiprocessing"),
    ],
)
def test_threads_and_sequential_runs_keep_the_graph(parallel: Callable[[], Parallel]) -> None:
    tensor = leaf()

    def run() -> None:
        results = parallel()(delayed(workers.double)(tensor) for _ in range(2))
        torch.stack(results).sum().backward()

    assert found(run) == []
    assert tensor.grad is not None


def test_the_backend_that_the_context_sets() -> None:
    tensor = leaf()

    def configured() -> None:
        with parallel_config(backend="threading", n_jobs=2):
            Parallel()(delayed(workers.total)(tensor) for _ in range(2))
        with parallel_backend("multiprocessing", n_jobs=2):
            Parallel()(delayed(workers.total)(tensor) for _ in range(2))

    (finding,) = found(configured)
    assert finding.details["backend"] == "multiprocessing"


def test_tasks_dispatched_late_and_in_batches_are_counted() -> None:
    tensor = leaf()
    for options in ({"pre_dispatch": 2}, {"pre_dispatch": "all"}, {"batch_size": 7}, {}):
        tasks = (delayed(workers.total)(tensor) for _ in range(40))
        (finding,) = found(lambda tasks=tasks, o=options: Parallel(2, **o)(tasks))
        # a batch is one pickle: one tensor in it is pickled once
        assert 1 <= finding.count <= 40
        assert finding.code == "GG101"


def test_a_later_task_is_seen_too() -> None:
    tensor = leaf()
    items = [torch.ones(3)] * 60 + [tensor]
    (finding,) = found(lambda: Parallel(2)(delayed(workers.total)(item) for item in items))
    assert finding.count == 1
    assert finding.details["object"] == "args[0]"


def test_several_threads_that_call_parallel_at_once() -> None:
    tensor = leaf()

    def call() -> None:
        Parallel(2, batch_size=1)(delayed(workers.total)(tensor) for _ in range(4))

    def run() -> None:
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    (finding,) = found(run)
    assert finding.count == 12


def test_a_call_inside_a_worker_is_guarded_too() -> None:
    tensor = leaf()
    findings = found(lambda: Parallel(2)(delayed(workers.nested)(tensor) for _ in range(2)))
    assert visible(findings) == ["GG101", "GG101"]
    inner = next(f for f in findings if f.location.path == workers.__file__)
    assert inner.location.function == "nested"
    assert inner.count == 4


def test_calls_at_different_lines_are_different_findings() -> None:
    tensor = leaf()

    def run() -> None:
        with Parallel(2) as parallel:
            parallel(delayed(workers.total)(tensor) for _ in range(2))
            parallel(delayed(workers.total)(tensor) for _ in range(2))

    first, second = found(run)
    assert second.location.line == first.location.line + 1


def test_scikit_learns_own_parallel() -> None:
    pytest.importorskip("sklearn")
    from sklearn.utils import parallel as sklearn_parallel

    tensor = leaf()
    (finding,) = found(
        lambda: sklearn_parallel.Parallel(2)(
            sklearn_parallel.delayed(workers.total)(tensor) for _ in range(2)
        )
    )
    assert finding.details["object"] == "args[0]"
    assert finding.details["function"] == "total"
    assert finding.location.path == __file__
