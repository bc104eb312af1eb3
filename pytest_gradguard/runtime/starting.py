"""Declares everything that is watched, as soon as anything starts to watch.

A declaration names a module of the program. Ours that watches it is imported once that is loaded.
"""

from __future__ import annotations

from pytest_gradguard.runtime import integrations, pitfalls
from pytest_gradguard.runtime.kernel import watching

_PITFALLS = pitfalls.__name__
AWAITED = (
    ("random", "random.seed_calls"),
    ("subprocess", "ddp.launched_programs"),
    ("joblib.memory", "cache.gg108"),
    ("torch.cuda", "cuda.torch"),
    ("torch.cuda", "cuda.driver"),
    ("torch.autograd", "cuda.driver"),
    ("torch.serialization", "cuda.loading"),
    ("torch.optim.optimizer", "kept.used_gradients"),
    ("torch.optim.optimizer", "lost.pickled_leaves"),
    ("torch.optim.optimizer", "lost.subprocesses"),
    ("torch.optim.optimizer", "lost.rpc_results"),  # torch imports its RPC before its modules
    ("torch.optim.optimizer", "kept.hand_forks"),
    ("cupy", "cuda.cupy"),
    ("tensorflow.python.eager.context", "cuda.tensorflow"),
    ("tensorflow.python.eager.backprop", "tapes.opening"),
    ("torch.utils.data.distributed", "ddp.gg503"),
    ("torch.nn.parallel.distributed", "ddp.gg504"),
    ("torch.nn.parallel.data_parallel", "modules.replicas"),
    ("torch.distributed.distributed_c10d", "ddp.groups"),
    ("torch.distributed.fsdp._fully_shard._fully_shard", "ddp.sharded"),
    ("torch.distributed.fsdp._fully_shard._fully_shard", "ddp.unreduced"),
    ("lightning.fabric.utilities.distributed", "ddp.lightning"),
    ("lightning_fabric.utilities.distributed", "ddp.lightning"),
)
"""In addition to the integrations: the modules of programs, and ours that watch them."""
IN_WORKERS = (
    ("torch.autograd", "kept.backwards"),
    ("torch.cuda", "cuda.earlier"),
    ("torch.optim.optimizer", "kept.arrived"),
    ("torch.optim.optimizer", "lost.process_results"),
)
"""Modules watched in worker processes only."""

for _module, _ours in IN_WORKERS:
    watching.when_imported(_module, watching.lazily(f"{_PITFALLS}.{_ours}"), in_workers=True)
for _module, _ours in AWAITED:
    watching.when_imported(_module, watching.lazily(f"{_PITFALLS}.{_ours}"))


def declare() -> None:
    """Declare everything that is watched, once."""
    integrations.load()
