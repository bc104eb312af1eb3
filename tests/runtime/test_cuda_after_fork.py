"""Whether it is the fork of a process that makes CUDA fail in it: what is said then is GG203."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_gradguard.runtime.kernel import plain_data, probes  # noqa: E402
from pytest_gradguard.runtime.kernel.dispatch.reporting import Reporter  # noqa: E402
from pytest_gradguard.runtime.kernel.tasks import Task  # noqa: E402
from pytest_gradguard.runtime.pitfalls.cuda import attempts, errors, gg201, gg203  # noqa: E402  # noqa: E402

REFUSED = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you …"


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    status = 3


CUDARuntimeError.__module__ = "cupy_backends.cuda.api.runtime"


@pytest.fixture(autouse=True)
def _in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(attempts, "is_forked", lambda: True)
    monkeypatch.setattr(attempts.state, "after_fork", False)
    monkeypatch.setattr(attempts, "inherited", set())
    yield
    attempts.state.clear()
    probes.active.clear()


def fails(said: str = REFUSED, framework: str = "torch") -> bool:
    return attempts.fails_by_fork(framework, RuntimeError(said))


@pytest.mark.parametrize(
    "said",
    [
        REFUSED,
        "CUDA error: initialization error\nCUDA kernel errors might be asynchronously reported …",
        "CUDA driver initialization failed, you might not have a CUDA gpu.",
    ],
)
def test_what_torch_says_in_a_fork(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fails(said)
    monkeypatch.setattr(attempts, "is_forked", lambda: False)
    assert not fails(said)


def test_what_cupy_says_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    error = CUDARuntimeError("cudaErrorInitializationError: initialization error")
    assert errors.by_fork(error) == "cupy"
    assert [(it.framework, it.by_fork) for it in errors.attempt_behind(error, errors.by_fork)] == [
        ("cupy", True)
    ]
    assert list(errors.attempt_behind(error)) == []
    monkeypatch.setattr(attempts, "inherited", {"cupy"})  # the fork itself was reported
    assert errors.by_fork(error) is None
    assert fails()


def test_errors_of_another_reason() -> None:
    assert not attempts.fails_by_fork("torch", None)
    assert not fails("No CUDA GPUs are available")
    assert errors.by_fork(ValueError(REFUSED)) is None
    assert errors.by_fork(RuntimeError("CUDA out of memory")) is None
    assert not gg203.activated_by(RuntimeError("no"))
    assert gg203.activated_by(RuntimeError(REFUSED))


def test_a_parent_that_had_initialised_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    assert not fails()
    assert fails(framework="cupy")
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    monkeypatch.setattr(attempts.state, "after_fork", True)
    assert not fails()


def work(k: int) -> int:
    return k


BATCH = [(work, (1,), {})]


def test_attempts_are_told_apart() -> None:
    attempts.note("torch", RuntimeError(REFUSED))
    attempts.note("torch", RuntimeError("No CUDA GPUs are available"))
    assert {"gg201", "gg203"} <= set(probes.active)
    lost = gg203.inspect_batch(BATCH, None, None)
    used = gg201.inspect_batch(BATCH, None, None)
    assert lost is not None
    assert used is not None
    assert [it.by_fork for it in lost.attempts] == [True]
    assert [it.by_fork for it in used.attempts] == [False]
    assert (lost.process, lost.task.name) == (os.getpid(), "work")
    assert gg203.inspect_batch(BATCH, [1], None) is None


def test_an_error_that_nobody_noted() -> None:
    error = RuntimeError(REFUSED)
    told = gg203.inspect_batch(BATCH, None, error)
    assert told is not None
    assert [it.failed for it in told.attempts] == [f"RuntimeError: {REFUSED}"]
    attempts.note("torch", error)
    again = gg203.inspect_batch(BATCH, None, error)
    assert again is not None
    assert len(again.attempts) == 1


def test_what_is_forgotten() -> None:
    attempts.note("torch", RuntimeError(REFUSED))
    attempts.state.clear()
    assert attempts.take_lost() == ()


class _Reported(Reporter):
    """What a process would tell."""

    def __init__(self) -> None:
        super().__init__(None)
        self.notes: list[Any] = []

    def report(self, name: str, note: Any, certain: bool | None = None, about: int = 0) -> None:
        assert (name, certain) == ("gg203", None)  # it has happened
        self.notes += plain_data.loads(plain_data.dumps(note), gg201.Used).attempts


@pytest.mark.parametrize(("was_up", "by_fork"), [(True, False), (False, True), (False, False)])
def test_what_a_process_tells(monkeypatch: pytest.MonkeyPatch, was_up: bool, by_fork: bool) -> None:
    monkeypatch.setattr(Reporter, "here", None)
    told = _Reported()
    gg203.begin((was_up, Task("work", None, None)), True)
    made = attempts.Attempt(None, None, None, "failed", True, "torch", by_fork)
    assert attempts.state.listener is not None
    attempts.state.listener(made)
    assert told.notes == ([made] if was_up or by_fork else [])


@pytest.mark.parametrize(
    ("said", "count"), [("CUDA error: initialization error", 1), ("CUDA out of memory", 0)]
)
def test_a_process_that_fails_on_what_it_inherited(
    monkeypatch: pytest.MonkeyPatch, said: str, count: int
) -> None:
    """It comes to no initialisation of CUDA that could be noted: the first kernel fails."""
    monkeypatch.setattr(Reporter, "here", None)
    told = _Reported()
    after = gg203.begin((True, Task("work", None, None)), True)
    assert after([], None, RuntimeError(said)) is None
    assert [made.failed for made in told.notes] == [f"RuntimeError: {said}"] * count


@pytest.mark.parametrize(
    ("by_fork", "said"),
    [(True, "This process has started the CUDA driver"), (False, "This process has initialised")],
)
def test_what_is_said(by_fork: bool, said: str) -> None:
    evidence = gg203.Evidence(None, "multiprocessing", framework="torch", device="cuda")
    made = attempts.Attempt("train.py", 3, "work", "no CUDA", True, "torch", by_fork)
    evidence.add_attempt(7, Task("work", None, None), made)
    assert evidence.message().startswith(said)
    assert "`work`" in evidence.message()
    assert ("no CUDA" in evidence.message()) is by_fork
