"""`multiprocessing.Process`."""

from __future__ import annotations

from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.registry import PROCESSES, Integration, later

FORKS = "pytest_gradguard.runtime.pitfalls.forks.forks"

watching.when_imported("multiprocessing.process", watching.lazily(FORKS))
INTEGRATION = Integration(
    name="processes",
    patches={"multiprocessing.process": later(f"{__name__}.starting:patches", PROCESSES)},
    inline={
        "multiprocessing.process": later(f"{__name__}.inline:patches", PROCESSES),
        "multiprocessing.queues": later(f"{__name__}.inline:queues"),
        "multiprocessing.connection": later(f"{__name__}.inline:connections"),
        "torch.distributed.distributed_c10d": later(f"{__name__}.inline:ranks"),
    },
    packages=("torch.distributed.elastic", "torch.distributed.launcher"),
    transparent=True,
    runners={"pytest_gradguard.runtime.integrations.processes.process_notes": {}},
)
