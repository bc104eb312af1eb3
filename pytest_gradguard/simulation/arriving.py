"""The simulation in worker processes: it arrives with each batch of tasks, and goes with it.

A worker may serve, after this one, a program that has not asked for pretended GPUs: so it has them
from the unpickling of the tasks to the pickling of their results.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from typing import Any

from pytest_gradguard import simulation
from pytest_gradguard.runtime import cuda
from pytest_gradguard.simulation import waiting

_HERE = uuid.uuid4().hex
_arrived = False


class Carried:
    """Unpickled in another process, it switches the simulation on there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (arrive, (simulation.pretended(), _identity()))


def _identity() -> str:
    return f"{os.getpid()}-{_HERE}"


def arrive(devices: int, origin: str) -> Carried:
    """Pretend so many GPUs in this worker until `depart`; called by unpickling."""
    global _arrived
    if origin != _identity() and devices:
        if _arrived:
            simulation.stop()
        _arrived = True
        simulation.start(devices, again=True)
    return Carried()


def depart() -> None:
    """The results of the tasks are on their way: leave the worker as it was."""
    global _arrived
    if _arrived:
        _arrived = False
        simulation.stop()


def stay(devices: int) -> None:
    """Pretend so many GPUs in this process, which was started for a simulated program alone."""
    simulation.start(devices)
    waiting.call_after("torch", cuda.apply)  # an initializer runs before any task is looked at


class Staying:
    """The same as `Carried`, for a process that starts."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (stay, (simulation.pretended(),))


def enter_thread() -> Callable[[], None] | None:
    """Let the simulation see this thread; what ends that, or None: it does already."""
    if "torch" not in sys.modules or not simulation.is_loaded():
        return None
    from pytest_gradguard.simulation import mode, switch

    now = switch.current()
    if now is None or mode.is_entered(now):
        return None
    now.__enter__()
    return lambda: mode.leave(now)
