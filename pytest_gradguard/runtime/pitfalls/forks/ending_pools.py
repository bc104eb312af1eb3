"""Ends a pool of processes whose workers may still be sending results.

A worker that `Pool.terminate` kills while it sends a result never releases the lock of the results'
queue, and the pool then waits for it forever. That is rare without the guard, but less so with the
notes that the guard attaches to errors of tasks. So each worker is ended while this process holds
the lock.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 5.0
"""Seconds to wait for a worker that is sending a result: most take milliseconds."""
_DYING = 0.5
"""Seconds to wait for a killed process to end."""


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
