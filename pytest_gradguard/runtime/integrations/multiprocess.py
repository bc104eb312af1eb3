"""`multiprocess`, on which pathos and Hugging Face's `datasets` stand.

It is the standard library's `multiprocessing` with dill for a pickler, which takes tensors by
value: one with history crosses without an error.
"""

from __future__ import annotations

from pytest_gradguard.runtime.integrations import pools, processes
from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.registry import Integration, Workers, later

WORKERS = Workers("multiprocess", forks=True, library="multiprocessing")
_POOLS = f"{pools.__name__}.methods"

watching.when_imported("multiprocess.process", watching.lazily(processes.FORKS))
INTEGRATION = Integration(
    name="multiprocess",
    patches={
        "multiprocess.pool": later(f"{_POOLS}:patches", WORKERS),
        "multiprocess.process": later(f"{processes.__name__}.starting:patches", WORKERS),
    },
    inline={
        "multiprocess.pool": later(f"{pools.__name__}.inline:patches", WORKERS),
        "multiprocess.process": later(f"{processes.__name__}.inline:patches", WORKERS),
        "multiprocess.queues": later(f"{processes.__name__}.inline:queues"),
        "multiprocess.connection": later(f"{processes.__name__}.inline:connections"),
    },
    packages=("multiprocess", "pathos"),
    transparent=True,
    runners={"multiprocess.pool": {"worker": later(f"{_POOLS}:answer")}},
    forks_in=("multiprocess.pool",),
)
