"""Which trainable variables a thread reads, as TensorFlow itself notes it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import concrete_function

from pytest_gradguard.runtime.patching import Patch, Patches


class _Reading(threading.local):
    depth: int = 0


_reading = _Reading()


class Reads:
    """What is read in this thread from now on, until `end`."""

    def __init__(self) -> None:
        _patches.apply()
        self._watcher = record.VariableWatcher()
        self._watcher.__enter__()
        _reading.depth += 1

    def end(self) -> Any:
        """The variables that were read."""
        _reading.depth -= 1
        self._watcher.__exit__(None, None, None)
        return self._watcher.watched_variables()


def _noting(original: Callable[[], bool]) -> Callable[[], bool]:
    """A traced function says which variables it reads only where a tape could want to know."""

    @functools.wraps(original)
    def could_possibly_record() -> bool:
        if _reading.depth and sys._getframe(1).f_globals is vars(concrete_function):
            return True
        return original()

    return could_possibly_record


_patches = Patches([Patch(record, "could_possibly_record", _noting)])


def undo() -> None:
    """Leave TensorFlow as it was."""
    _patches.undo()
