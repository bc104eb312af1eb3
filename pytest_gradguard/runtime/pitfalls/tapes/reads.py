"""Which trainable variables a thread reads, as TensorFlow itself records."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import record

from pytest_gradguard.runtime.pitfalls.tapes import own


class Reads:
    """Records the variables read in this thread, until `end`."""

    def __init__(self) -> None:
        own.listen(own.TASKS)
        self._watcher = record.VariableWatcher()
        self._watcher.__enter__()
        own.reading.depth += 1

    def end(self) -> Any:
        """Return the variables that were read."""
        own.reading.depth -= 1
        self._watcher.__exit__(None, None, None)
        return self._watcher.watched_variables()
