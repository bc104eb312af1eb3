"""Reports a write to read-only memory just before it kills this process.

A write to a read-only page is a signal that kills the process. While a listener is set, the handler
of that signal is ours: it passes the address to the listener, restores the previous handler, and
returns. The same write then fails again, and the process dies as it would have. Until then,
listening costs nothing.

Python code in the handler of such a signal is safe if the write itself fails, because that code
runs in a thread stopped at one instruction of a computation. The handler may also run for other
faults while a listener is set; it then does nothing.
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
_NOT_ALLOWED = 2  # SEGV_ACCERR: the page exists, and is not writable
_CODE, _ADDRESS = 8, 16
"""Offsets in the handler's `siginfo_t`."""


class _Action(ctypes.Structure):
    """`struct sigaction`, as Linux's C libraries define it where writes are detectable."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


Listener = Callable[[int], object]
_listener: Listener | None = None
_before = _Action()


def can_detect() -> bool:
    """Whether such a write can be detected on this system."""
    return HERE.tells_write_faults()


def listen(listener: Listener) -> None:
    """Call `listener` with the address of a write that kills this process, until `stop`."""
    global _listener
    action = _Action(_address_of_handler(), flags=_WITH_ADDRESS)
    if _listener is None:
        _sigaction()(signal.SIGSEGV, ctypes.byref(action), ctypes.byref(_before))
    _listener = listener


def stop() -> None:
    """Stop listening; a handler that the program has set since then is kept."""
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
    with _one_at_a_time:  # several threads of one computation fail at once: the first one reports
        listener, _listener = _listener, None
        try:
            code = ctypes.c_int.from_address(information + _CODE).value
            if listener is not None and code == _NOT_ALLOWED:
                listener(ctypes.c_size_t.from_address(information + _ADDRESS).value)
        except BaseException:  # this process is about to die, and the error is the write's
            pass
        finally:
            _restore()
    if code <= 0:  # the signal was sent: no instruction fails again
        signal.raise_signal(number)


_one_at_a_time = threading.Lock()
_handler: Any = None
"""Kept alive forever: another handler may call it as its predecessor."""


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
