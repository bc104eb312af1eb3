"""GG505: ranks whose parameters are no longer equal."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG505",
    name="ranks-diverge",
    title="The parameters are no longer equal on all ranks",
    severity=Severity.ERROR,
    happens=(
        "Ranks that average their gradients hold the same parameters after every step. Once they "
        "differ, nothing makes them equal again: each rank trains a model of its own, the losses "
        "of the ranks drift apart, and usually that of rank 0 alone is saved. There is no error."
    ),
    why=(
        "`DistributedDataParallel` copies the parameters of rank 0 once, when it wraps the module, "
        "and later averages gradients only. Equal gradients keep equal parameters equal. They "
        "differ from the beginning where each rank initializes or loads them in its own way; and "
        "from a step on where gradients are not averaged, or a rank skips a step."
    ),
    fix=(
        "Find the first step after which they differ, and what a rank does there by itself. Wrap "
        "the module after all parameters are made and loaded, run its forward pass through the "
        "DDP module, and make the same steps on all ranks. If you average gradients yourself, "
        "broadcast the parameters of rank 0 before the first step, and average the gradient of "
        "each parameter."
    ),
    bad="""\
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, init, weights):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    weights[rank] = model.weight.detach()


if __name__ == "__main__":
    weights = torch.zeros(2, 2).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/group", weights), nprocs=2)
    print(f"equal: {torch.equal(*weights)}")  # prints: equal: False
""",
    good="""\
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, init, weights):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.Linear(2, 1, bias=False)
    dist.broadcast(model.weight.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    weights[rank] = model.weight.detach()


if __name__ == "__main__":
    weights = torch.zeros(2, 2).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/group", weights), nprocs=2)
    print(f"equal: {torch.equal(*weights)}")  # prints: equal: True
""",
    lint=None,
    runtime=(
        "When the parameters of a live DDP module, or those whose gradients the program averages "
        "with collectives of `torch.distributed`, differ between two ranks of one machine by more "
        "than rounding. Compared are the first eight steps of each optimizer, then each power of "
        "two, and the end. The finding names the first such step, the largest difference, and the "
        "cause if one was seen: GG502, parameters that differed before the first step, or a step "
        "that one rank skipped. The ranks leave notes in a temporary folder: no rank waits, and "
        "the program's process groups carry nothing."
    ),
    reach=(
        "Ranks on different machines are not compared with each other. Sharded parameters (FSDP, "
        "DTensor), parameters that DDP ignores, and modules with `post_localSGD_hook` are not "
        "compared, and a module under `no_sync` is not reported if its parameters are averaged "
        "later."
    ),
    silence="If the ranks are meant to train separately.",
    links=(links.TORCH_DDP, links.TORCH_DISTRIBUTED),
)
