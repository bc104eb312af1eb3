"""Where whoever begins to watch begins: all that is watched has been declared here.

A declaration names what to wait for. The modules that watch it are imported once it is there.
"""

from __future__ import annotations

from pytest_gradguard.runtime import integrations, watching

_HERE = __name__.rpartition(".")[0]
AWAITED = (
    ("random", "seed_calls"),
    ("joblib.memory", "checks.gg108"),
    ("torch.cuda", "cuda.torch"),
    ("torch.cuda", "cuda.driver"),
    ("torch.autograd", "cuda.driver"),
    ("torch.serialization", "cuda.loading"),
    ("cupy", "cuda.cupy"),
    ("tensorflow.python.eager.context", "cuda.tensorflow"),
    ("tensorflow.python.eager.backprop", "tapes.opening"),
    ("torch.utils.data.distributed", "checks.gg503"),
    ("torch.nn.parallel.distributed", "checks.gg504"),
    ("torch.distributed.distributed_c10d", "distributed.groups"),
    ("torch.distributed.fsdp._fully_shard._fully_shard", "distributed.sharded"),
    ("lightning.fabric.utilities.distributed", "distributed.lightning"),
    ("lightning_fabric.utilities.distributed", "distributed.lightning"),
)
"""Beside the integrations: the modules that programs import, and what of ours then watches them."""

watching.when_imported("torch.autograd", *watching.lazily(f"{_HERE}.backwards"), in_workers=True)
for _module, _ours in AWAITED:
    watching.when_imported(_module, *watching.lazily(f"{_HERE}.{_ours}"))


def start(user: object) -> None:
    """Watch from now on; `watching.stop` undoes it, for that user."""
    integrations.load()
    watching.start(user)


def start_in_worker() -> None:
    """Watch what tasks do in this process, a worker: its own workers, CUDA and backward passes."""
    integrations.load()
    watching.start_in_worker()
