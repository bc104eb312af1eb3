"""The compute threads of PyTorch: whether a thread has started some, and how they are ended.

PyTorch computes large operations with OpenMP. GNU's runtime (libgomp, in PyTorch's wheels) keeps
a pool of threads for each thread that computes. A forked child inherits the record of the forking
thread's pool without its threads, and waits for them forever in its first large operation. Other
runtimes (Intel's, LLVM's) begin anew in a forked child. `omp_pause_resource_all` (OpenMP 5.0) ends
the pool of the calling thread; the next large operation starts one again.
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
"""Seconds in which threads that have been told to end are gone, on a busy machine too."""
_UNCERTAIN = 0.05
"""The same, where it is not even known whether there are such threads."""
_PATIENCE = 0.3
"""The same, in which a thread waits again, or has ended, that just runs."""


class Library(NamedTuple):
    """The OpenMP runtime that PyTorch has loaded.

    Attributes:
        pause: ends the calling thread's pool; None where it is too old for that.
        code: where its code stands in memory.
    """

    pause: Any
    code: tuple[tuple[int, int], ...]

    def holds(self, address: int) -> bool:
        """Whether the instruction at `address` is one of this library's."""
        return any(first <= address < last for first, last in self.code)


def loaded() -> Library | None:
    """GNU's runtime as PyTorch has loaded it, or None: no PyTorch, or another runtime."""
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
    """Threads that are known not to be in this thread's pool: they outlived an end of it."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


_others = _Others()


def candidates() -> set[int]:
    """The threads that may belong to a pool of PyTorch's."""
    library = loaded()
    if library is None:
        return set()
    found = native_threads.foreign()
    _others.ids.intersection_update(found)
    found -= _others.ids
    if not native_threads.readable():
        return found
    # An idle thread of a pool waits inside the library's own code; one that runs may belong there.
    return {
        thread
        for thread in found
        if (waiting := native_threads.waiting(thread)) is None or library.holds(waiting.place)
    }


def _settled() -> set[int]:
    """The candidates, once those that run wait again, or have ended.

    A thread that Python is done with lives a moment longer, and could be any.
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
    """Whether the calling thread has started compute threads, which are ended then."""
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
