"""A guarded program gives the same results, the same errors and the same traces of itself."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.pool import MaybeEncodingError
from typing import Any

import failing_tasks
import pytest
import torch
import workers
from joblib import Parallel, delayed

from pytest_gradguard import GradGuardWarning, guard
from pytest_gradguard.runtime.kernel.worker import Outbox

# Before Python 3.11 an error carries no notes: what the guard adds to one is a warning of its own.
NO_NOTES = sys.version_info < (3, 11)


def outcome(run: Callable[[], Any], guarded: bool) -> tuple[Any, ...]:
    """The result, or the error with its type, text and cause; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with guard("record") if guarded else nullcontext():
            try:
                result: tuple[Any, ...] = ("returned", run())
            except Exception as error:
                cause = type(error.__cause__).__name__
                result = (type(error), str(error), cause)
    texts = [str(w.message) for w in caught if not (NO_NOTES and w.category is GradGuardWarning)]
    return (*result, sorted(texts))


def unpicklable() -> list[Any]:
    return [torch.ones(2, requires_grad=True), threading.Lock()]


def one_at_a_time(index: int) -> int:
    if index == 2:
        raise ZeroDivisionError(index)
    return index


PROGRAMS: dict[str, Callable[[str], Any]] = {
    "results": lambda b: Parallel(2, backend=b)(delayed(abs)(i) for i in range(-5, 5)),
    "nothing": lambda b: Parallel(2, backend=b)([]),
    "worker error": lambda b: Parallel(2, backend=b)(
        delayed(failing_tasks.fail)(7) for _ in range(1)
    ),
    "bad argument": lambda b: Parallel(2, backend=b)(delayed(len)(unpicklable()) for _ in range(2)),
    "no tasks at all": lambda b: Parallel(2, backend=b)(i for i in range(2)),
    "generator error": lambda b: Parallel(2, backend=b, pre_dispatch=1)(
        delayed(abs)(one_at_a_time(i)) for i in range(4)
    ),
    "timeout": lambda b: Parallel(2, backend=b, timeout=0.3)(
        delayed(time.sleep)(2) for _ in range(2)
    ),
    "zero jobs": lambda b: Parallel(0, backend=b)(delayed(abs)(i) for i in range(2)),
}


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_outcome(name: str, backend: str) -> None:
    run = PROGRAMS[name]
    assert outcome(lambda: run(backend), True) == outcome(lambda: run(backend), False)


def test_results_that_cannot_be_pickled_are_quoted_alike() -> None:
    # Not with a real pool: one that is torn down while a second worker reports may wait forever.
    results = [threading.Lock()]
    outbox = Outbox(1, results, [], [], [])
    mine, theirs = (MaybeEncodingError(TypeError("no"), (True, kept)) for kept in (outbox, results))
    assert str(mine) == str(theirs)


def test_a_worker_that_dies() -> None:
    def run() -> Any:
        return Parallel(2)(delayed(failing_tasks.die)(i) for i in range(2))

    guarded, bare = outcome(run, True), outcome(run, False)
    assert guarded[0] is bare[0]
    assert guarded[0].__name__ == "TerminatedWorkerError"
    # the pool is usable afterwards
    assert outcome(lambda: Parallel(2)(delayed(abs)(i) for i in (-1, 1)), True)[1] == [1, 1]


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_results_are_equal_to_the_bit_and_of_the_same_kind(backend: str) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(4, 5, generator=generator, requires_grad=True),
        torch.randn(6, generator=generator).to(torch.bfloat16).requires_grad_(),
        torch.tensor(3.0, requires_grad=True),
        torch.zeros(0, requires_grad=True),
        torch.randn(3, 4, generator=generator).t().requires_grad_(),
        torch.randn(3, dtype=torch.complex64, generator=generator).requires_grad_(),
    ]

    def run() -> list[torch.Tensor]:
        return Parallel(2, backend=backend)(delayed(workers.double)(item) for item in inputs)

    bare = run()
    with guard("record"):
        guarded = run()
    for mine, theirs in zip(guarded, bare, strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.dtype, mine.stride(), mine.requires_grad, mine.is_leaf) == (
            theirs.dtype,
            theirs.stride(),
            theirs.requires_grad,
            theirs.is_leaf,
        )


def test_a_parallel_object_carries_nothing_of_ours() -> None:
    with guard("record"):
        parallel = Parallel(2)
        parallel(delayed(abs)(i) for i in range(4))
    assert not [name for name in vars(parallel) if "gradguard" in name.lower()]


def test_the_same_tensor_twice_in_a_result_is_one_tensor() -> None:
    with guard("record"):
        ((first, second),) = Parallel(2)([delayed(twice)(torch.ones(2, requires_grad=True))])
    assert first is second


def twice(tensor: torch.Tensor) -> list[torch.Tensor]:
    doubled = tensor * 2
    return [doubled, doubled]


def test_gradients_that_arrive_are_what_they_would_be() -> None:
    def run() -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        out = Parallel(2)(delayed(workers.double)(x) for _ in range(2))
        (out[0] * 5).sum().backward()
        return out[0].grad

    bare = run()
    with guard("record"):
        assert torch.equal(run(), bare)


def frames(error: BaseException) -> list[str]:
    names = []
    traceback = error.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    return names


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise brings the frames back")
@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_tracebacks_are_the_programs_own(backend: str) -> None:
    with guard("record"), pytest.raises(KeyError) as raised:
        Parallel(2, backend=backend)(delayed(failing_tasks.fail)(1) for _ in range(1))
    assert not [name for name in frames(raised.value) if "pytest_gradguard" in name]
    assert "pytest_gradguard" not in str(raised.value.__cause__)

    with guard("record"), pytest.raises(ZeroDivisionError) as raised_here:
        Parallel(2, backend=backend)(delayed(abs)(one_at_a_time(2)) for _ in range(2))
    assert not [name for name in frames(raised_here.value) if "pytest_gradguard" in name]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise brings the frames back")
def test_the_traceback_of_a_failing_backward_is_the_programs_own() -> None:
    with guard("record"):
        out = Parallel(2)(delayed(workers.own_graph)(index) for index in range(2))
        with pytest.raises(RuntimeError, match="grad can be implicitly created") as raised:
            (out[0] * 2).backward()
        loss = (out[0] * out[0]).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time") as again:
            loss.backward()
    for error in (raised.value, again.value):
        assert not [name for name in frames(error) if "pytest_gradguard" in name]
