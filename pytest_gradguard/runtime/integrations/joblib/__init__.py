"""joblib: this package alone knows its classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gradguard.records import fields
from pytest_gradguard.runtime.kernel.registry import THREADS, Integration, Workers, later


@fields
class Backend:
    """How the batches of one of joblib's backends travel.

    Attributes:
        workers: the kind of its workers.
        batch: makes what stands in for a batch, given that, its call and the backend; None: what
            does for all that are pickled whole, or run in threads.
    """

    workers: Workers
    batch: Callable[[Any, Any, Any], Any] | None = None


batches: type | None = None
"""joblib's class of batches, once it is watched."""

INTEGRATION = Integration(
    name="joblib",
    patches={
        "joblib.parallel": later(f"{__name__}.parallel:patches"),
        "joblib.pool": later(f"{__name__}.parallel:pickling"),
        "joblib._memmapping_reducer": later(f"{__name__}.memory_maps:patches"),
        "joblib.externals.loky.backend.queues": later(f"{__name__}.parallel:weighing"),
    },
    inline={"joblib.parallel": later(f"{__name__}.inline:patches")},
    packages=("joblib", "sklearn"),
    runners={"joblib.parallel": {}},
    forks_in=("joblib.pool",),
    joblib_backends={
        "joblib._parallel_backends.SequentialBackend": None,
        "joblib._parallel_backends.LokyBackend": Workers("loky", library="joblib"),
        "joblib._parallel_backends.MultiprocessingBackend": Workers(
            "multiprocessing", forks=True, library="joblib"
        ),
        "joblib._parallel_backends.ThreadingBackend": THREADS,
    },
)
