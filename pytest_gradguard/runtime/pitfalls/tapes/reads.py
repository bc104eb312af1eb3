"""Which trainable variables a thread reads, as TensorFlow itself notes it."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import record

from pytest_gradguard.runtime.pitfalls.tapes import own


class Reads:
    """What is read in this thread from now on, until `end`."""

    def __init__(self) -> None:
        own.listen(own.TASKS)
        self._watcher = record.VariableWatcher()
        self._watcher.__enter__()
        own.reading.depth += 1

    def end(self) -> Any:
        """The variables that were read."""
        own.reading.depth -= 1
        self._watcher.__exit__(None, None, None)
        return self._watcher.watched_variables()
