"""GG504: the error of a DDP model some of whose parameters received no gradient."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG504",
    name="ddp-unused-parameters",
    title="A DDP forward pass fails because a parameter received no gradient",
    severity=Severity.ERROR,
    happens=(
        "The second forward pass raises `Expected to have finished reduction in the prior "
        "iteration before starting a new one`. The error lists parameter numbers, without names "
        "or reasons. Ranks that got all their gradients wait for this one."
    ),
    why=(
        "`DistributedDataParallel` averages gradients in buckets, as they arrive. A parameter "
        "that the loss does not reach leaves its bucket open: the layer is not called, its "
        "output is not part of the loss, `.detach()` or `no_grad` cuts the graph behind it, or "
        "it was frozen or replaced after the model was wrapped."
    ),
    fix=(
        "Follow the reason that the finding gives for each parameter, so that the loss reaches "
        "them all. Freeze what is not meant to learn before you wrap the model. Only if "
        "iterations really use different parts, pass `find_unused_parameters=True`: DDP then "
        "searches the graph in every iteration."
    ),
    bad="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x).detach())


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(Network())
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()  # raises: RuntimeError
""",
    good="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x))


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(Network())
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
""",
    runtime=(
        "When a forward pass of a DDP model raises that error: the finding names each parameter "
        "without a gradient, as the wrapped model names it, with the reason and its line."
    ),
    silence="Never: the forward pass fails.",
    links=(links.TORCH_DDP, links.TORCH_AUTOGRAD),
)
