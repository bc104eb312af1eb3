"""GG506: ranks that train one module in shared memory."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG506",
    name="shared-module-in-ranks",
    title="Every rank steps the same module in shared memory",
    severity=Severity.ERROR,
    happens=(
        "A module is sent to the ranks of a process group, each of which wraps it in "
        "`DistributedDataParallel` and steps it. The ranks hold the same memory: with N ranks, "
        "every step is made N times, and one rank may change parameters while another one uses "
        "them. There is no error, and the ranks never differ."
    ),
    why=(
        "`torch.multiprocessing` moves the tensors on the CPU that it sends into shared memory; so "
        "do `multiprocessing` and `ProcessPoolExecutor` once torch is imported, and "
        "`share_memory()` for forked processes. `DistributedDataParallel` averages the gradients, "
        "and relies on each rank stepping parameters of its own."
    ),
    fix=(
        "Give each rank a module of its own: wrap `copy.deepcopy(model)`, build the module in the "
        "rank, or move it to the GPU of the rank. To bring the result back, let one rank save its "
        "state, or load it into the shared module after the last step."
    ),
    bad="""\
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def train(rank, init, model):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/group", model), nprocs=2)
    print(f"{model.weight.item():.1f}")  # prints: 0.8
""",
    good="""\
import copy
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, init, model):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    ddp = DDP(copy.deepcopy(model))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    if rank == 0:
        model.load_state_dict(ddp.module.state_dict())


if __name__ == "__main__":
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/group", model), nprocs=2)
    print(f"{model.weight.item():.1f}")  # prints: 0.9
""",
    lint=(
        "On the `spawn` or `Process` call that sends a module in shared memory to several ranks, "
        "which wrap it in `DistributedDataParallel` on the CPU and step its parameters."
    ),
    runtime=(
        "When two ranks of one machine have stepped a DDP module whose parameters lie in the same "
        "shared memory. On Linux, where the guard sees which memory that is."
    ),
    silence="Never: without the wrapper, each rank would step with its own gradients (Hogwild).",
    links=(links.TORCH_DDP, links.TORCH_MULTIPROCESSING),
)
