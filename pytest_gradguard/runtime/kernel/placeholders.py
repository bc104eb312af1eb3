"""Objects of this process that a library's store only seems to hold.

A library that stores results in other processes (Ray, dask.distributed) is given a placeholder for
what a task has returned inline. Its own references, futures and waiting work as they do elsewhere;
where it reads the placeholder here, it gets the object.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from pytest_gradguard.runtime.kernel import inline


class Placeholder:
    """Stands for `value` in a store; lives while the store may be asked for it."""

    def __init__(self, value: Any) -> None:
        self.value = inline.state.isolation.pickled(value)
        _known[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (os.getpid(), id(self))


class _Foreign:
    """A placeholder in another process than its own."""

    def __init__(self, process: int, number: int) -> None:
        self._named = process, number

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, self._named


def _read(process: int, number: int) -> Any:
    """Called by unpickling."""
    if process != os.getpid():
        return _Foreign(process, number)
    return inline.state.isolation.pickled(_known[number].value)


_known: weakref.WeakValueDictionary[int, Placeholder] = weakref.WeakValueDictionary()
