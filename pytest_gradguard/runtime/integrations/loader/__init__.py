"""PyTorch's `DataLoader`: worker processes that read a dataset, and send batches."""

from __future__ import annotations

from pytest_gradguard.pitfalls.advice import LOADERS as LIBRARY
from pytest_gradguard.pitfalls.advice import SAMPLES_ON_CPU
from pytest_gradguard.runtime.registry import Integration, Workers, later

LOADERS = Workers(
    "DataLoader",
    forks=True,
    shares_memory=True,
    loads_data=True,
    library=LIBRARY,
    advice={
        "GG101": "Give the dataset `tensor.detach()`, and compute what needs a gradient in the "
        "training loop.",
        "GG102": "Return indices or inputs from the dataset, and compute what needs a gradient in "
        "the training loop; or use `num_workers=0`. If no gradient is needed, return "
        "`tensor.detach()`.",
        "GG202": SAMPLES_ON_CPU,
        "GG305": "Make the generator in each worker, in `worker_init_fn` or at the first sample, "
        "from a seed such as `torch.initial_seed()`: torch seeds only the global generators of a "
        "loader's workers.",
    },
)
WORKERS = "torch.utils.data._utils.worker"
LOOP = "_worker_loop"

INTEGRATION = Integration(
    name="loader",
    patches={"torch.utils.data.dataloader": later(f"{__name__}.iterating:patches")},
    runners={WORKERS: {LOOP: later(f"{__name__}.iterating:answer")}},
    forks_in=("torch.utils.data.dataloader",),
)
