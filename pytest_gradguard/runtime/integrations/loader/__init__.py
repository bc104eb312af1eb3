"""PyTorch's `DataLoader`: worker processes that read a dataset, and send batches."""

from __future__ import annotations

from pytest_gradguard.pitfalls.advice import LOADERS as LIBRARY
from pytest_gradguard.runtime.kernel.registry import Integration, Workers, later

LOADERS = Workers(
    "DataLoader",
    forks=True,
    shares_memory=True,
    loads_data=True,
    library=LIBRARY,
)
WORKERS = "torch.utils.data._utils.worker"
STATEFUL_WORKERS = "torchdata.stateful_dataloader.worker"
LOOP = "_worker_loop"

INTEGRATION = Integration(
    name="loader",
    patches={
        "torch.utils.data.dataloader": later(f"{__name__}.iterating:patches"),
        "torchdata.stateful_dataloader.stateful_dataloader": later(
            f"{__name__}.iterating:stateful_patches"
        ),
    },
    inline={"torch.utils.data.dataloader": later(f"{__name__}.inline:patches")},
    runners={
        WORKERS: {LOOP: later(f"{__name__}.working:answer")},
        STATEFUL_WORKERS: {LOOP: later(f"{__name__}.working:answer")},
    },
    forks_in=("torch.utils.data.dataloader",),
)
