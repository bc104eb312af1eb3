"""`multiprocess`, on which pathos and Hugging Face's `datasets` stand.

It is the standard library's `multiprocessing` with dill for a pickler, which takes tensors by
value: one with history crosses without an error.
"""

from __future__ import annotations

from pytest_gradguard.runtime import watching
from pytest_gradguard.runtime.fork_safety import forks
from pytest_gradguard.runtime.integrations import pools, processes
from pytest_gradguard.runtime.registry import Integration, Workers

WORKERS = Workers("multiprocess", forks=True, library="multiprocessing")

watching.when_imported("multiprocess.process", forks.apply, forks.undo)
INTEGRATION = Integration(
    name="multiprocess",
    patches={
        "multiprocess.pool": pools.patches(WORKERS),
        "multiprocess.process": processes.patches(WORKERS),
    },
    packages=("multiprocess", "pathos"),
    transparent=True,
    runners={"multiprocess.pool": {"worker": pools.answer}},
    forks_in=("multiprocess.pool",),
)
