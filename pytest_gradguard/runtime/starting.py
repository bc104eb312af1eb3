"""Where whoever begins to watch begins: all that is watched has been declared here."""

from __future__ import annotations

from pytest_gradguard.runtime import (
    backwards,
    cuda,
    distributed,
    integrations,
    seeding,
    tapes,
    watching,
)
from pytest_gradguard.runtime.checks import gg108, gg503, gg504

_DECLARING = (backwards, cuda, distributed, gg108, gg503, gg504, seeding, tapes)
"""Beside the integrations: what says itself which modules it waits for, as it is imported."""


def start(user: object) -> None:
    """Watch from now on; `watching.stop` undoes it, for that user."""
    integrations.load()
    watching.start(user)


def start_in_worker() -> None:
    """Watch what tasks do in this process, a worker: its own workers, CUDA and backward passes."""
    integrations.load()
    watching.start_in_worker()
