"""Locks that are open in a forked child, whoever held them in its parent.

A thread that holds a lock of ours while another thread forks does not exist in the child, and would
never release the lock there.
"""

from __future__ import annotations

import contextlib
import threading
import weakref

from pytest_gradguard.runtime.kernel.lineage import in_child


class Lock:
    """A reentrant lock, for use as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(RuntimeError):  # it was renewed since: this thread has forked
            self._lock.release()


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _in_child() -> None:
    for lock in list(_all):
        lock._lock = threading.RLock()


in_child(_in_child)
