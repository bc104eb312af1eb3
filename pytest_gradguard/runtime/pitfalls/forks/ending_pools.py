"""A pool of processes that is ended while its workers still answer.

A worker that `Pool.terminate` kills while it sends a result takes the lock of the results' queue
with it, and the pool then waits for that lock forever. Without the guard that is rare; what the
guard sends along with the errors of tasks makes it less so. So each worker is ended while this
process holds the lock.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 5.0
"""Seconds to wait for a worker that sends a result: most take milliseconds."""
_DYING = 0.5
"""Seconds in which a process that is killed is gone."""


@contextmanager
def workers_hold_no_lock(pool: Any) -> Iterator[None]:
    """A block in which the workers of `pool` are ended only while none of them sends a result."""
    lock = getattr(getattr(pool, "_outqueue", None), "_wlock", None)
    workers = [] if lock is None else list(pool._pool)
    for worker in workers:
        worker.terminate = functools.partial(_terminate, worker, lock)
    try:
        yield
    finally:
        for worker in workers:
            vars(worker).pop("terminate", None)


def _terminate(worker: Any, lock: Any) -> None:
    held = lock.acquire(timeout=_PATIENCE)
    try:
        type(worker).terminate(worker)
        worker.join(_DYING)
    finally:
        if held:
            lock.release()
