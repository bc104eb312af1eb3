"""`billiard`, Celery's pools and processes.

It is a fork of the standard library's `multiprocessing` whose pools feed their workers in a way of
their own. Its pickler is the plain one, which takes tensors with history without an error.
"""

from __future__ import annotations

from pytest_gradguard.runtime.integrations import processes
from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.registry import Integration, Workers, later

WORKERS = Workers("billiard", forks=True, library="multiprocessing")
_POOLS = f"{__name__}.pools"

watching.when_imported("billiard.process", watching.lazily(processes.FORKS))
INTEGRATION = Integration(
    name="billiard",
    patches={
        "billiard.pool": later(f"{_POOLS}:patches", WORKERS),
        "billiard.process": later(f"{processes.__name__}.starting:patches", WORKERS),
    },
    packages=("billiard", "celery"),
    transparent=True,
    runners={"billiard.pool": {"workloop": later(f"{_POOLS}:answer")}},
    forks_in=("billiard.pool",),
)
