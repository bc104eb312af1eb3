"""Watches a caller's generator of tasks where joblib pulls it from threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame

Ending = Callable[[], None]


def wrap_tasks(tasks: Any, begin: Callable[[], Ending | None]) -> Any:
    """`tasks`, watched in threads other than this one.

    An object with a length is no generator, and is unchanged: progress totals ask for its length.

    Args:
        tasks: the caller's tasks.
        begin: starts to watch the current thread; returns a function that ends it, or None.
    """
    if hasattr(tasks, "__len__") or not isinstance(tasks, Iterator):
        return tasks
    return _Pulled(tasks, begin)


class _Pulled:
    def __init__(self, tasks: Iterator[Any], begin: Callable[[], Ending | None]) -> None:
        self._tasks = tasks
        self._begin = begin
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tasks, name)

    def __iter__(self) -> _Pulled:
        return self

    def __next__(self) -> Any:
        if threading.get_ident() == self._thread:
            return next(self._tasks)
        end = attempt(self._begin)
        try:
            return next(self._tasks)
        except BaseException as error:
            without_this_frame(error)
            raise
        finally:
            if end is not None:
                attempt(end)
