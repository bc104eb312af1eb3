"""CUDA that an initializer brought up in a worker process before the guard started."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel import worker
from pytest_gradguard.runtime.pitfalls.cuda import attempts


def apply() -> None:
    """Record that CUDA was up before any task arrived, if it was."""
    if worker.cuda_was_up:
        attempts.note_earlier()
