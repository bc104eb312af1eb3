"""Who writes to memory that is read-only, and dies of it: heard just before this process does.

A write to a read-only page is a signal that kills the process. While somebody listens, the handler
of that signal is ours: it tells the listener the address, puts back the handler that was there
before, and returns. The same write then fails again, and the process dies as it would have. Until
that write, listening costs nothing.

Python code in the handler of such a signal is safe where the write itself fails, for that code runs
in a thread that stands at one instruction of a computation. It may run whatever else fails while
somebody listens, too, so that it does nothing then.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from pytest_gradguard.platforms import HERE

_WITH_ADDRESS = 4  # SA_SIGINFO
_NOT_ALLOWED = 2  # SEGV_ACCERR: the page is there, and may not be written
_CODE, _ADDRESS = 8, 16
"""Where these stand in what the handler is given."""


class _Action(ctypes.Structure):
    """`struct sigaction`, as the C libraries of Linux have it where `can_be_heard`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


Listener = Callable[[int], object]
_listener: Listener | None = None
_before = _Action()


def can_be_heard() -> bool:
    """Whether such a write can be heard of on this system."""
    return HERE.tells_write_faults()


def listen(listener: Listener) -> None:
    """Have `listener` told the address of a write that kills this process, until `stop`."""
    global _listener
    action = _Action(_address_of_handler(), flags=_WITH_ADDRESS)
    if _listener is None:
        _sigaction()(signal.SIGSEGV, ctypes.byref(action), ctypes.byref(_before))
    _listener = listener


def stop() -> None:
    """Listen no longer; a handler that somebody has put in place meanwhile stays."""
    global _listener
    if _listener is None:
        return
    _listener = None
    now = _Action()
    _sigaction()(signal.SIGSEGV, None, ctypes.byref(now))
    if now.handler == _address_of_handler():
        _restore()


def _restore() -> None:
    _sigaction()(signal.SIGSEGV, ctypes.byref(_before), None)


def _handle(number: int, information: int, context: int) -> None:
    global _listener
    code = 0
    with _one_at_a_time:  # several threads of one computation fail at once: one of them tells
        listener, _listener = _listener, None
        try:
            code = ctypes.c_int.from_address(information + _CODE).value
            if listener is not None and code == _NOT_ALLOWED:
                listener(ctypes.c_size_t.from_address(information + _ADDRESS).value)
        except BaseException:  # this process is about to die, and the error is the write's
            pass
        finally:
            _restore()
    if code <= 0:  # somebody has sent the signal: nothing fails again by itself
        signal.raise_signal(number)


_one_at_a_time = threading.Lock()
_handler: Any = None
"""Kept for good: another handler may have been told that this is the one before it."""


@cache
def _address_of_handler() -> int:
    global _handler
    _handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_handle)
    address = ctypes.cast(_handler, ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def _sigaction() -> Any:
    return ctypes.PyDLL(None).sigaction
