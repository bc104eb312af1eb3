"""joblib's batches are known by what they share, and small ones go through a worker untouched."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import workers
from joblib import Parallel, delayed
from joblib_releases import GENERATOR, UNORDERED

from pytest_gradguard import Finding, guard
from pytest_gradguard.findings import Location, Severity
from pytest_gradguard.runtime.kernel import collector, probes


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def codes(run: Callable[[], Any]) -> list[str]:
    """The codes of what is found in `run`, but for what is only worth knowing."""
    with guard("record") as report:
        run()
    return [finding.code for finding in report.findings if finding.severity >= Severity.WARNING]


def now_and_then(index: int) -> Any:
    """Nothing to tell of; and of one task in ten, a result with a graph."""
    return workers.own_graph(index).sum() if index % 10 == 7 else index


def now_and_then_nested(index: int) -> Any:
    return sum(workers.nested(leaf())) if index % 10 == 7 else index


OPEN: list[Any] = []


def open_guard(index: int) -> int:
    OPEN.append(guard("record"))
    OPEN[-1].__enter__()
    return index


def value(index: int) -> float:
    return workers.own_graph(index).sum().item()


def nested_or_open_guard(index: int) -> Any:
    return sum(workers.nested(leaf())) if index >= 20 else open_guard(index)


def consumed(parallel: Parallel) -> None:
    list(parallel(delayed(workers.identity)(i) for i in range(8)))


def dropped(parallel: Parallel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel(delayed(workers.identity)(i) for i in range(8))
        gc.collect()


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"return_as": "generator"}, marks=GENERATOR),
        pytest.param({"return_as": "generator_unordered"}, marks=UNORDERED),
    ],
)
def test_after_its_call_a_parallel_is_as_it_was(options: dict[str, str]) -> None:
    bare, guarded = Parallel(2, **options), Parallel(2, **options)
    consumed(bare)
    with guard("record"):
        consumed(guarded)
    assert vars(guarded).keys() == vars(bare).keys()


@GENERATOR
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # loky's own
@pytest.mark.parametrize("before", [consumed, dropped])
def test_a_parallel_is_watched_in_each_of_its_calls(before: Callable[[Parallel], None]) -> None:
    def run() -> None:
        parallel = Parallel(2, return_as="generator")
        before(parallel)
        list(parallel(delayed(workers.total)(x) for _ in range(4)))

    x = leaf()
    assert codes(run) == ["GG101"]


def test_the_guard_takes_no_look_at_each_batch_for_joblibs_own_threads() -> None:
    looked: list[Any] = []
    with guard("record"), Parallel(n_jobs=2, backend="threading") as parallel:
        pool = parallel._backend._get_pool()
        watched = type(pool).apply_async
        parallel(delayed(workers.identity)(i) for i in range(8))
        looked.append(pool.apply_async.__func__)
    assert looked == [watched.__wrapped__]
    assert "apply_async" not in vars(pool)  # and it refers to itself no longer


def test_a_subclass_sees_each_of_its_batches_leave() -> None:
    class Counting(Parallel):  # type: ignore[misc]  # joblib has no types
        left = 0

        def _dispatch(self, batch: Any) -> Any:
            self.left += 1
            return super()._dispatch(batch)

    x = leaf()
    parallel = Counting(2, batch_size=1)
    assert codes(lambda: parallel(delayed(workers.total)(x) for _ in range(12))) == ["GG101"]
    assert parallel.left == 12


@GENERATOR
def test_two_calls_at_once_are_told_apart() -> None:
    x = leaf()

    def run() -> None:
        first = Parallel(2, return_as="generator", batch_size=1)(
            delayed(workers.identity)(i) for i in range(40)
        )
        other = Parallel(2, backend="multiprocessing", batch_size=1)
        other(delayed(workers.total)(x) for _ in range(3))
        assert list(first) == list(range(40))

    with guard("record") as report:
        run()
    (finding,) = [one for one in report.findings if one.code == "GG101"]
    assert (finding.details["backend"], finding.count) == ("multiprocessing", 3)


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_what_comes_after_many_harmless_batches_is_seen(backend: str) -> None:
    def run(function: Callable[[int], Any]) -> None:
        Parallel(2, backend=backend, batch_size=1)(delayed(function)(i) for i in range(40))

    with guard("record") as report:
        run(now_and_then)
    assert [(finding.code, finding.count) for finding in report.findings] == [("GG102", 4)]
    if backend == "loky":  # in daemons, nested calls run one task after the other
        assert codes(lambda: run(now_and_then_nested)) == ["GG101"]


def test_what_a_call_asks_is_answered_by_workers_that_were_quiet() -> None:
    def run() -> None:
        Parallel(2, batch_size=1)(delayed(value)(i) for i in range(8))
        with torch.no_grad():
            Parallel(2, batch_size=1)(delayed(value)(i) for i in range(8))

    assert codes(run) == ["GG301"]


def test_what_workers_do_unguarded_is_not_told_of_later() -> None:
    def harmless() -> None:
        Parallel(2, batch_size=1)(delayed(now_and_then_nested)(i) for i in range(6))

    assert codes(harmless) == []
    Parallel(2, batch_size=1)(delayed(workers.nested)(leaf()) for _ in range(8))
    assert codes(harmless) == []


def test_a_guard_that_a_task_left_open_hears_nothing_of_later_tasks() -> None:
    def run() -> None:
        Parallel(2, batch_size=1)(delayed(nested_or_open_guard)(i) for i in range(28))

    assert codes(run) == ["GG101"]


FINDING = Finding("GG101", "name", Severity.WARNING, "runtime", "message", Location("a.py", 1))
ENDINGS: dict[str, Callable[[collector.Collector], Any]] = {
    "a finding arrives": lambda one: one.add(FINDING),
    "something is noticed": lambda one: one.evidence("key", lambda: None),  # type: ignore[arg-type, return-value]
    "a collector is opened": collector.enter,
    "a collector is opened below": collector.enter_first,
    "a probe is active": lambda one: probes.activate("gg106"),
}


@pytest.mark.parametrize("way", ENDINGS)
def test_what_ends_the_quiet(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "stack", [])
    monkeypatch.setattr(collector._thread, "scopes", [])  # what is opened here, nobody closes
    monkeypatch.setattr(probes, "active", {})
    monkeypatch.setattr(collector.here, "quiet", True)
    ENDINGS[way](collector.Collector())
    assert not collector.here.quiet
