"""Starts and stops the simulation in this process, now or as soon as torch is imported."""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard import imports
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.pitfalls import cuda

_lock = Lock()
_asked: list[int] = []
_again = False


def start(devices: int, *, again: bool = False) -> None:
    """Simulate so many GPUs, now or as soon as torch is imported. Calls nest; the last one counts.

    Args:
        devices: how many.
        again: this process had them before, and goes on with what it knew of them.

    Raises:
        ValueError: `devices` is not a number above 0.
        RuntimeError: this process uses a real GPU already.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(f"the number of GPUs to simulate must be 1 or more, not {devices!r}")
    global _again
    with _lock:
        _again = again
        if is_loaded():
            _on(devices, again=again)
        elif not _asked:
            imports.call_after("torch", _loaded)
        _asked.append(devices)


def stop() -> None:
    """Undo one `start`: the number of GPUs is what it was before it."""
    with _lock:
        _asked.pop()
        if not _asked:
            imports.forget(_loaded)
        if is_loaded():
            if _asked:
                _on(_asked[-1])
            else:
                _switch().off()


def pretended() -> int:
    """How many GPUs are simulated now; 0: the simulation is off."""
    return _asked[-1] if _asked else 0


def is_loaded() -> bool:
    """Whether torch has been imported whole."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compile") and "torch.cuda" in sys.modules


def _loaded() -> None:
    with _lock:
        if _asked:
            _on(_asked[-1], again=_again)


class _Staying:
    """Unpickled in a process that starts, it simulates the same there, for good."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (stay, (pretended(),))


def stay(devices: int) -> None:
    """Simulate so many GPUs in this process, which was started for a simulated program alone."""
    start(devices)
    imports.call_after("torch", cuda.apply)  # an initializer runs before any task is looked at


def _on(devices: int, *, again: bool = False) -> None:
    _switch().on(devices, _Staying(), again=again)


def _switch() -> Any:
    from pytest_gradguard.simulation import switch

    return switch
