"""A model is trained past the wrapper that averages its gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.payloads import Collective, WrapperBypass
from gradguard_lint.domain.values import Site
from gradguard_lint.rules.base import Examples, Report, code

CODE = "GG502"


def check(program: Program) -> Iterator[Report]:
    if any(it.payload.does == "reduce" for it in program.effects_of(Collective)):
        return  # gradients, or parameters, are averaged by hand somewhere
    effects = program.effects_of(WrapperBypass)
    forwards = {it.payload.forward: it for it in effects if not it.payload.stepped}
    for effect in effects:
        forward = forwards.get(effect.payload.forward)
        if forward is None or not effect.payload.stepped:
            continue
        wrapper = str(forward.payload.wrapper.constant or "DistributedDataParallel").rpartition(
            "."
        )[2]
        chain, site, what = _entered(forward)
        prepared = wrapper == "prepare"  # a single process has no wrapper
        yield Report(
            site,
            f"{code(what)} bypasses "
            f"{'the model that `prepare` returned' if prepared else wrapper}: the optimizer steps "
            "with the gradients of this rank alone, and the ranks drift apart.",
            (
                *chain,
                Step(effect.site, "the optimizer steps with gradients that were not averaged"),
            ),
            severity="warning" if prepared else None,
            what=what,
            case=_case(forward, effect),
        )


def _case(forward: Effect[WrapperBypass], step: Effect) -> str:
    """Whether it is a method of the module that trains it (a loop), or computes the loss."""
    place = forward.payload.place
    called = place.node if place is not None else None
    if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Attribute):
        return ""
    if called.func.attr in ("forward", "module"):
        return ""
    inside = any(link.site == place for link in step.chain)
    return "training loop" if inside else "method"


def _entered(forward: Effect[WrapperBypass]) -> tuple[Sequence[Step], Site, str]:
    """How the program comes to the module, where it does, and what it calls there."""
    site = forward.payload.place
    if site is None or not isinstance(site.node, ast.Call):
        return forward.chain, forward.site, forward.what
    number = [step.site for step in forward.chain].index(site)
    return forward.chain[:number], site, f"{ast.unparse(site.node.func)}(...)"


BAD: Examples = {
    "the module in the wrapper": """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

net = torch.nn.Linear(3, 1)
ddp = DDP(net)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for batch in torch.ones(4, 2, 3):
    optimizer.zero_grad()
    loss = ddp.module(batch).sum()  # GG502
    loss.backward()
    optimizer.step()
""",
    "the module that was wrapped": """\
import torch
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.body(x)


def main():
    net = Net()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for batch in torch.ones(4, 2, 3):
        loss = net(batch).sum()  # GG502
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
""",
    "autograd.grad": """\
import torch
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
parameters = list(ddp.parameters())
loss = ddp(torch.ones(2, 3)).sum()
gradients = torch.autograd.grad(loss, parameters)  # GG502
for parameter, gradient in zip(parameters, gradients):
    parameter.grad = gradient
optimizer.step()
""",
}

GOOD: Examples = {
    "the wrapper": """\
import torch
from torch.nn.parallel import DistributedDataParallel

net = torch.nn.Linear(3, 1)
ddp = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number, batch in enumerate(torch.ones(4, 2, 3)):
    optimizer.zero_grad()
    if number % 2:
        with ddp.no_sync():
            ddp(batch).sum().backward()
    ddp(batch).sum().backward()
    optimizer.step()
ddp.eval()
with torch.no_grad():
    print(ddp.module(torch.ones(2, 3)).sum())
print(ddp.module(torch.ones(2, 3)).sum().item())
torch.save(ddp.module.state_dict(), "net.pt")
""",
    "averaged by hand": """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for batch in torch.ones(4, 2, 3):
    optimizer.zero_grad()
    ddp.module(batch).sum().backward()
    for parameter in ddp.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
""",
    "only where there is one process": """\
import argparse

import torch
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(3, 1)
model_without_ddp = model
if args.distributed:
    model = DistributedDataParallel(model)
    model_without_ddp = model.module
optimizer = torch.optim.SGD(model_without_ddp.parameters(), lr=0.1)
for batch in torch.ones(4, 2, 3):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
""",
    "the other network of two": """\
import torch
from torch.nn.parallel import DistributedDataParallel

generator = DistributedDataParallel(torch.nn.Linear(2, 3))
critic = DistributedDataParallel(torch.nn.Linear(3, 1))
first = torch.optim.SGD(generator.parameters(), lr=0.1)
second = torch.optim.SGD(critic.parameters(), lr=0.1)
for batch in torch.ones(4, 2, 3):
    second.zero_grad()
    fake = generator(torch.randn(2, 2))
    (critic(fake.detach()).mean() - critic(batch).mean()).backward()
    second.step()
    first.zero_grad()
    critic.module(fake).mean().neg().backward()
    first.step()
""",
}
