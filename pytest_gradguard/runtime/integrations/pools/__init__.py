"""`multiprocessing.pool`: `Pool`, `torch.multiprocessing.Pool` and `ThreadPool`."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel.registry import PROCESSES, Integration, later

INTEGRATION = Integration(
    name="pools",
    patches={
        "multiprocessing.pool": later(f"{__name__}.methods:patches", PROCESSES),
        "multiprocessing.queues": later(
            "pytest_gradguard.runtime.pitfalls.lost.queue_puts:patches"
        ),
        "multiprocessing.reduction": later(
            "pytest_gradguard.runtime.pitfalls.lost.pickling_errors:patches"
        ),
        "torch.multiprocessing.reductions": later(
            "pytest_gradguard.runtime.pitfalls.lost.received_tensors:patches"
        ),
    },
    inline={"multiprocessing.pool": later(f"{__name__}.inline:patches", PROCESSES)},
    packages=("multiprocessing", "torch.multiprocessing"),
    transparent=True,
    runners={
        "multiprocessing.pool": {"worker": later(f"{__name__}.methods:answer")},
        "torch.multiprocessing.pool": {},
    },
    forks_in=("multiprocessing.pool",),
)
