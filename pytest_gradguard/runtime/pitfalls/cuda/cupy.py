"""Sees when CuPy first takes GPU memory in this process, or fails to for want of a GPU.

CuPy's compiled code calls the CUDA runtime directly, where nothing can listen. But what it computes
lies in memory for which it asks one function, also from compiled code: the one that
``cupy.cuda.set_allocator`` names. Until the first allocation has succeeded, a function of ours
stands before it; from then on CuPy is as it was.

Not seen: memory that the program takes by ``cupy.cuda.using_allocator``, and what needs a context
but no memory, such as a stream. What fails before it comes to ask for memory, such as
``cupy.asarray`` of a NumPy array, is seen by the error of the task (see `errors`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.frameworks.cupy import FRAMEWORK
from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.faults import fault, without_this_frame
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.pitfalls.cuda import attempts, errors

_NAME = "cupy"
_lock = Lock()


class _Watch:
    """Our function before the allocator of the program."""

    def __init__(self, memory: Any) -> None:
        self.set = memory.set_allocator
        self.get = memory.get_allocator
        self.program = self.get()
        holders = [memory]
        package = sys.modules.get("cupy.cuda")
        if getattr(package, "set_allocator", None) is self.set:
            holders.append(package)
        self._patches = Patches(
            [observe(holder, "set_allocator", after=self._is_set) for holder in holders]
            + [observe(holder, "get_allocator", result=self._in_place_of) for holder in holders]
        )
        self.set(self.allocate)  # raises within `using_allocator`
        self._patches.apply()

    def end(self) -> None:
        """Leave CuPy with the allocator of the program."""
        self._patches.undo()
        if self.get() == self.allocate:
            self.set(self.program)

    def allocate(self, size: int) -> Any:
        """What the program's allocator gives; the first memory that it gives ends the watch."""
        try:
            memory = self.program(size)
        except BaseException as error:
            without_this_frame(error)
            if errors.no_gpu(error) or attempts.fails_by_fork(_NAME, error):
                attempts.note(_NAME, error)
            elif isinstance(error, MemoryError):  # CUDA is up, and its memory is full
                _came_up(self)
            raise
        if size > 0:  # no memory, no context
            _came_up(self)
        return memory

    def _is_set(self, *_: Any, **__: Any) -> None:
        if _watch is self:
            self.program = self.get()
            self.set(self.allocate)

    def _in_place_of(self, allocator: Any) -> Any:
        return self.program if allocator == self.allocate else None


_watch: _Watch | None = None


def apply() -> None:
    """Begin to watch for the first memory, where CuPy is loaded and has taken none yet."""
    global _watch
    memory: Any = sys.modules.get("cupy.cuda.memory")
    with _lock:
        if memory is None or _watch is not None or _NAME in attempts.up | attempts.inherited:
            return
        _watch = _Watch(memory)


def _undo() -> None:
    global _watch
    with _lock:
        watch, _watch = _watch, None
    if watch is not None:
        watch.end()


watching.at_end(_undo)


def _came_up(watch: _Watch) -> None:
    try:
        if watch is _watch:
            _undo()
            attempts.initialised(_NAME)
    except Exception as error:
        fault(error)


def rebuild_array(rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild, in a worker, an array of CuPy's; called by unpickling.

    CUDA is initialised for it, maybe before anything else is watched in this worker: not by what
    the tasks do.
    """
    try:
        apply()
    except Exception as error:
        fault(error)
    return rebuild(*arguments)


FRAMEWORK.rebuild = rebuild_array
