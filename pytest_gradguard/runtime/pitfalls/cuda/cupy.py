"""Detects when CuPy first allocates GPU memory in this process, or fails to without a GPU.

CuPy's compiled code calls the CUDA runtime directly, where nothing can be observed. But it
allocates memory, also from compiled code, through the one function that
``cupy.cuda.set_allocator`` sets. Until the first allocation succeeds, a wrapper of ours is set;
after that, CuPy is left as it was.

Not detected: memory allocated within ``cupy.cuda.using_allocator``, and uses that need a context
but no memory, such as a stream. What fails before the allocation, such as ``cupy.asarray`` of a
NumPy array, is detected from the error of the task (see `errors`).
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
    """Our wrapper of the program's allocator."""

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
        """Restore the program's allocator."""
        self._patches.undo()
        if self.get() == self.allocate:
            self.set(self.program)

    def allocate(self, size: int) -> Any:
        """Allocate with the program's allocator; the first success ends the watch."""
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
    """Watch for CuPy's first allocation, if CuPy is loaded and has made none yet."""
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
    """Rebuild a CuPy array in a worker; called by unpickling.

    CUDA may be initialised for it before anything else is watched in this worker; the tasks did
    not initialise it.
    """
    try:
        apply()
    except Exception as error:
        fault(error)
    return rebuild(*arguments)


FRAMEWORK.rebuild = rebuild_array
