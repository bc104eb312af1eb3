"""Start and stop the simulation in this process, in workers and in spawned processes.

It starts at once, or as soon as the program has imported torch. Pool workers may later serve a
program without simulated GPUs: there it lasts from the unpickling of a batch of tasks to the
pickling of its results.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gradguard import imports
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.pitfalls import cuda

_lock = Lock()
_requested: list[int] = []
_resumed = False

_PROCESS = uuid.uuid4().hex
_arrived = False
"""The simulation of this worker came with its tasks."""
_running = 0
"""Concurrent tasks in this worker (dask)."""


def start(devices: int, *, again: bool = False) -> None:
    """Simulate `devices` GPUs. Calls nest; the last one counts.

    Args:
        devices: the number of GPUs.
        again: resume the state that these GPUs had in this process.

    Raises:
        ValueError: `devices` is not a positive integer.
        RuntimeError: this process already uses a real GPU.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(f"the number of GPUs to simulate must be 1 or more, not {devices!r}")
    global _resumed
    with _lock:
        _resumed = again
        if is_loaded():
            _activate(devices, again=again)
        elif not _requested:
            imports.call_after("torch", _on_import)
        _requested.append(devices)


def stop() -> None:
    """Undo one `start`."""
    with _lock:
        _requested.pop()
        if not _requested:
            imports.forget(_on_import)
        if is_loaded():
            if _requested:
                _activate(_requested[-1])
            else:
                _switch().deactivate()


def pretended() -> int:
    """The number of simulated GPUs; 0 when the simulation is off."""
    return _requested[-1] if _requested else 0


def is_loaded() -> bool:
    """Whether torch is completely imported."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compile") and "torch.cuda" in sys.modules


def _on_import() -> None:
    with _lock:
        if _requested:
            _activate(_requested[-1], again=_resumed)


def _activate(devices: int, *, again: bool = False) -> None:
    _switch().activate(devices, _StartInSpawned(), again=again)


def _switch() -> Any:
    from pytest_gradguard.simulation import switch

    return switch


class _StartInSpawned:
    """Unpickled in a spawned process, it starts the simulation there for good."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (start_for_good, (pretended(),))


def start_for_good(devices: int) -> None:
    """Simulate `devices` GPUs in a process spawned by a simulated program."""
    start(devices)
    imports.call_after("torch", cuda.apply)  # pool initializers run before any task


class Carried:
    """Unpickled in a worker, it starts the simulation there.

    Args:
        home: the number of the test that the tasks belong to.
        devices: in the worker, the number of GPUs.
    """

    def __init__(self, home: int, devices: int = 0) -> None:
        self._home = home
        self.devices = devices

    def __reduce__(self) -> tuple[Any, ...]:
        return (arrive, (pretended(), _identity(), self._home))


def carried(home: int) -> Carried:
    """The object that starts the simulation in the worker that unpickles it."""
    return Carried(home)


def _identity() -> str:
    return f"{os.getpid()}-{_PROCESS}"


def arrive(devices: int, origin: str, home: int) -> Carried:
    """Simulate `devices` GPUs in this worker until `depart`; called by unpickling."""
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
    """Simulate GPUs while at least one of several concurrent tasks runs."""
    global _arrived, _running
    if carried is None and _arrived and not _running:
        depart()  # it arrived with a task that never ran
    _leave_stopped()
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
        _leave_stopped()


def _leave_stopped() -> None:
    """Remove stopped simulations from this thread's modes."""
    mode = sys.modules.get("pytest_gradguard.simulation.mode")
    if mode is not None:
        mode.leave_stopped()


def depart() -> None:
    """End what `arrive` started: the results are pickled."""
    global _arrived
    if _arrived:
        _arrived = False
        stop()


def enter_thread() -> Callable[[], None] | None:
    """Activate the simulation in this thread.

    Returns:
        A function that undoes it; None if it was active.
    """
    if "torch" not in sys.modules or not is_loaded():
        return None
    from pytest_gradguard.runtime.frameworks.torch.following import take_off
    from pytest_gradguard.simulation import mode

    simulation = mode.current
    if simulation is None or mode.is_entered(simulation):
        return None
    simulation.__enter__()
    return lambda: take_off(simulation)
