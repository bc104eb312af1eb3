"""The simulation in worker processes: it arrives with each batch of tasks, and goes with it.

A worker may serve, after this one, a program that has not asked for simulated GPUs: so it has them
from the unpickling of the tasks to the pickling of their results.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.pitfalls import cuda
from pytest_gradguard.simulation.starting import is_loaded, pretended, start, stop

__all__ = [
    "carried",
    "depart",
    "during",
    "enter_thread",
    "pretended",
    "start",
    "stop",
]

_HERE = uuid.uuid4().hex
_arrived = False
_lock = Lock()
_running = 0
"""How many tasks of dask's run in this worker."""


class Carried:
    """Unpickled in another process, it switches the simulation on there.

    Args:
        home: a number of the test that the tasks belong to.
        devices: where it has arrived, how many GPUs there are.
    """

    def __init__(self, home: int, devices: int = 0) -> None:
        self._home = home
        self.devices = devices

    def __reduce__(self) -> tuple[Any, ...]:
        return (arrive, (pretended(), _identity(), self._home))


def carried(home: int) -> Carried:
    """What switches the simulation on in the worker that unpickles it."""
    return Carried(home)


def _identity() -> str:
    return f"{os.getpid()}-{_HERE}"


def arrive(devices: int, origin: str, home: int) -> Carried:
    """Simulate so many GPUs in this worker until `depart`; called by unpickling."""
    global _arrived
    if origin != _identity() and devices:
        if _arrived:
            stop()
        _arrived = True
        start(devices, again=True)
        cuda.renew((origin, home))
    return Carried(home, devices)


@contextmanager
def during(carried: Carried | None) -> Iterator[None]:
    """A block in which a task runs in a worker that runs others beside it.

    The first that comes brings the simulation, and the last that ends takes it away.
    """
    global _arrived, _running
    if carried is None and _arrived and not _running:
        depart()  # it came with a task that never ran
    _leave_ended()
    if carried is None:
        yield
        return
    with _lock:
        _running += 1
        if carried.devices and not _arrived:
            _arrived = True
            start(carried.devices, again=True)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                depart()
        _leave_ended()


def _leave_ended() -> None:
    """Take a simulation that is over off this thread, in which it may have begun."""
    mode = sys.modules.get("pytest_gradguard.simulation.mode")
    if mode is not None:
        mode.leave_ended()


def depart() -> None:
    """The results of the tasks are on their way: leave the worker as it was."""
    global _arrived
    if _arrived:
        _arrived = False
        stop()


def enter_thread() -> Callable[[], None] | None:
    """Let the simulation see this thread; what ends that, or None: it does already."""
    if "torch" not in sys.modules or not is_loaded():
        return None
    from pytest_gradguard.runtime.frameworks.torch.following import take_off
    from pytest_gradguard.simulation import mode

    now = mode.current
    if now is None or mode.is_entered(now):
        return None
    now.__enter__()
    return lambda: take_off(now)
