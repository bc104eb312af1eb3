"""The compute threads of PyTorch: whether a thread has started some, and how to end them.

PyTorch computes large operations with OpenMP. GNU's runtime (libgomp, in PyTorch's wheels) keeps a
pool of threads for each thread that computes. A forked child inherits the forking thread's record
of its pool without the threads, and waits for them forever in its first large operation. Other
runtimes (Intel's, LLVM's) start over in a forked child. `omp_pause_resource_all` (OpenMP 5.0) ends
the pool of the calling thread; the next large operation starts a new one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from functools import cache
from typing import Any, NamedTuple

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.pitfalls.forks import native_threads

_SOFT = 1  # omp_pause_soft
_ENOUGH = 1.0
"""Seconds to wait for ended threads to be gone, even on a busy machine."""
_UNCERTAIN = 0.05
"""Seconds to wait if it is not even known whether there are such threads."""
_PATIENCE = 0.3
"""Seconds to wait for a running thread to wait again or end."""


class Library(NamedTuple):
    """The OpenMP runtime that PyTorch has loaded.

    Attributes:
        pause: ends the calling thread's pool; None if the runtime is too old for that.
        code: the address ranges of its code.
    """

    pause: Any
    code: tuple[tuple[int, int], ...]

    def holds(self, address: int) -> bool:
        """Whether the instruction at `address` is in this library's code."""
        return any(first <= address < last for first, last in self.code)


def loaded() -> Library | None:
    """GNU's runtime if PyTorch has loaded it; None without PyTorch, or for another runtime."""
    if "torch.nn.parameter" not in sys.modules:
        return None
    return _library(str(sys.modules["torch"].__file__))


@cache
def _library(torch: str) -> Library | None:
    path = os.path.join(os.path.dirname(torch), "lib", "libtorch_cpu.so")
    handle = HERE.loaded_library(path)
    function = getattr(handle, "omp_get_max_threads", None)
    name = _library_of(function) if function is not None else ""
    if "gomp" not in os.path.basename(name):
        return None
    pause = getattr(handle, "omp_pause_resource_all", None)
    return Library(pause, native_threads.mapped_at(os.path.realpath(name)))


class _Info(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _library_of(function: Any) -> str:
    info = _Info()
    found = ctypes.CDLL(None).dladdr(function, ctypes.byref(info))
    return os.fsdecode(info.file) if found and info.file else ""


class _Others(threading.local):
    """Threads known not to be in this thread's pool: they outlived an end of it."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


_others = _Others()


def candidates() -> set[int]:
    """The threads that may belong to a pool of PyTorch."""
    library = loaded()
    if library is None:
        return set()
    found = native_threads.foreign()
    _others.ids.intersection_update(found)
    found -= _others.ids
    if not native_threads.readable():
        return found
    # An idle pool thread waits in the library's own code; a running one may belong to a pool.
    return {
        thread
        for thread in found
        if (waiting := native_threads.waiting(thread)) is None or library.holds(waiting.place)
    }


def _settled() -> set[int]:
    """The candidates, once running ones wait again or have ended.

    A thread that Python has finished with lives a moment longer, and could be any thread.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = candidates()
        if all(native_threads.waiting(thread) is not None for thread in found):
            return found
        if time.monotonic() > deadline or not native_threads.readable():
            return found
        time.sleep(0.001)


def computed() -> bool:
    """Whether the calling thread had started compute threads; ends them."""
    return end_pool(_settled())


def end_pool(suspects: set[int] | None = None) -> bool:
    """End the compute threads that the calling thread has started.

    Args:
        suspects: the threads that may be these; by default all `candidates`.

    Returns:
        Whether there were any.
    """
    library = loaded()
    if suspects is None:
        suspects = candidates()
    if library is None or library.pause is None or not suspects:
        return False
    if library.pause(_SOFT) != 0:
        return False
    patience = _ENOUGH if native_threads.readable() else _UNCERTAIN
    deadline = time.monotonic() + patience
    while suspects <= (alive := native_threads.ids()):
        if time.monotonic() > deadline:
            _others.ids.update(suspects & alive)
            return False
        time.sleep(0.0002)
    return True
