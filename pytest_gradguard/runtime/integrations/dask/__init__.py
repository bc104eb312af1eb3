"""dask: its own threads and processes, clients of `distributed`, and joblib's backend of it."""

from __future__ import annotations

from pytest_gradguard.runtime.integrations.joblib import Backend
from pytest_gradguard.runtime.kernel.registry import THREADS, Integration, Workers, later

WORKERS = Workers("dask", "copy", library="dask")
PROCESSES = Workers("multiprocessing", forks=True, shares_memory=True, library="dask")
"""Workers of dask's own pool, for `scheduler="processes"`."""
PACKAGES = ("dask", "distributed", "tlz", "toolz", "tornado")

INTEGRATION = Integration(
    name="dask",
    patches={
        "dask.threaded": later(f"{__name__}.threads:patches"),
        "dask.multiprocessing": later(f"{__name__}.processes:patches"),
        "distributed.client": later(f"{__name__}.client:patches"),
        "distributed.actor": later(f"{__name__}.actors:patches"),
        "joblib._dask": later(f"{__name__}.backend:patches"),
    },
    inline={
        "dask.threaded": later(f"{__name__}.inline:patches", THREADS),
        "dask.multiprocessing": later(f"{__name__}.inline:patches", PROCESSES),
        "distributed.client": later(f"{__name__}.inline_clients:patches"),
    },
    packages=PACKAGES,
    joblib_backends={
        "joblib._dask.DaskDistributedBackend": Backend(
            Workers("dask", "copy", library="joblib"), later(f"{__name__}.backend:DaskBatch")
        )
    },
)
