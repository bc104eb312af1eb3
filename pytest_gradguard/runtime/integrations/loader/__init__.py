"""PyTorch's `DataLoader`: worker processes that read a dataset, and send batches."""

from __future__ import annotations

from pytest_gradguard.runtime.registry import Integration, Workers, later

_ON_CPU = (
    "Keep the samples on the CPU in the workers, and move each batch to the GPU in the training "
    "loop (`pin_memory=True`, `batch.to(device, non_blocking=True)`)."
)
_FRESH = 'pass `multiprocessing_context="spawn"` to the loader.'
LOADERS = Workers(
    "DataLoader",
    forks=True,
    shares_memory=True,
    loads_data=True,
    advice={
        "GG101": "Give the dataset `tensor.detach()`, and compute what needs a gradient in the "
        "training loop.",
        "GG102": "Return `tensor.detach()` from the dataset and from `collate_fn`, and compute "
        "what needs a gradient in the training loop.",
        "GG201": _ON_CPU,
        "GG202": _ON_CPU,
        "GG203": f"{_ON_CPU} Where a worker has to use the GPU, {_FRESH}",
        "GG303": f"{_FRESH[0].upper()}{_FRESH[1:]} Or let forked workers compute with torch in "
        "the one thread that it gives them, and not with TensorFlow or JAX.",
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
