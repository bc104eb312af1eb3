"""A collective gives tensors without history, and a loss is made of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Change, Fix, InsertAfter
from gradguard_lint.fixes.written import binds, importing, is_open, keyword, source_of
from gradguard_lint.rules.base import Examples, Report, code, severed_by

CODE = "GG501"

_PARAMETERS = {
    "`all_gather`": ("tensor_list", "tensor", "group"),
    "`all_gather_object`": ("object_list", "obj", "group"),
}
"""Of the collectives that fill a list with a tensor of each rank: their parameters."""


def check(program: Program) -> Iterator[Report]:
    calls = {effect.ident: effect for effect in program.kinds("collective")}
    for effect in program.kinds("gradient-cut"):
        for ident in sorted(severed_by(effect.target) & calls.keys()):
            call = calls[ident]
            yield Report(
                call.site,
                f"The outputs of {code(call.what)} have no graph, and a loss is computed from "
                "them: what was gathered receives no gradient.",
                (*call.chain, Step(effect.site, "the backward pass stops at these outputs")),
                what=call.what,
                fix=_own_slot(call),
            )


def _own_slot(call: Effect) -> Fix | None:
    """The own part of the gathered list, with its graph, put back."""
    site = call.site
    node, statement, module = site.node, site.statement, site.module
    names = _PARAMETERS.get(call.what)
    if (
        names is None
        or not isinstance(node, ast.Call)
        or not isinstance(statement, ast.Expr)
        or statement.value is not node
        or is_open(node)
        or len(node.args) > len(names)
    ):
        return None
    waits = keyword(node, "async_op")
    if waits is not None and not _is(waits.value, False):
        return None
    given = dict(zip(names, node.args, strict=False))
    given |= {item.arg: item.value for item in node.keywords if item.arg}
    outputs, own, group = (given.get(name) for name in names)
    if not isinstance(outputs, (ast.Name, ast.Attribute)) or own is None or not _can_repeat(own):
        return None
    rank = _rank(site, node.func)
    if rank is None:
        return None
    asked, changes = rank
    within = "" if group is None or _is(group, None) else source_of(module, group)
    line = f"{source_of(module, outputs)}[{asked}({within})] = {source_of(module, own)}"
    changes = (InsertAfter(module, statement, line), *changes)
    return Fix("unsafe", "put this rank's tensor, which has its graph, back into the list", changes)


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _can_repeat(node: ast.expr) -> bool:
    """Whether `node` is the tensor, with its graph, when it is evaluated once more."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "contiguous"
        and not node.args
    ):
        node = node.func.value
    while isinstance(node, ast.Attribute) and node.attr != "data":
        node = node.value
    return isinstance(node, ast.Name)


def _rank(site: Site, function: ast.expr) -> tuple[str, tuple[Change, ...]] | None:
    """How the module asks for the rank, where it calls the collective `function`."""
    if isinstance(function, ast.Attribute):
        return f"{source_of(site.module, function.value)}.get_rank", ()
    if not isinstance(function, ast.Name):
        return None
    if (binds(site.module, function.id) or "").rpartition(".")[0] != "torch.distributed":
        return None
    changes = importing(site.module, "get_rank", "torch.distributed")
    return None if changes is None else ("get_rank", changes)


BAD: Examples = {
    "a list": """\
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, store, results):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    weight = torch.ones(2, requires_grad=True)
    scale = torch.ones((), requires_grad=True)
    features = weight * (rank + 1)
    gathered = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, features)  # GG501
    loss = (scale * torch.cat(gathered)).sum()
    loss.backward()
    results.put(None if weight.grad is None else weight.grad.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (os.path.join(tempfile.mkdtemp(), "store"), results), nprocs=2)
    print(sorted(results.get() for _ in range(2)))  # repaired: [[1.0, 1.0], [2.0, 2.0]]
""",
    "in a loss": """\
import torch
import torch.nn.functional as F
from torch.distributed import all_gather, get_world_size


def gather_features(features):
    world_size = get_world_size()
    if world_size == 1:
        return features
    gathered = [torch.zeros_like(features) for _ in range(world_size)]
    all_gather(gathered, features)  # GG501
    return torch.cat(gathered, dim=0)


class Contrastive(torch.nn.Module):
    def forward(self, images, texts):
        images, texts = F.normalize(images, dim=-1), F.normalize(texts, dim=-1)
        logits = images @ gather_features(texts).t()
        return F.cross_entropy(logits, torch.arange(len(logits)))


def main(batches):
    encoder, criterion = torch.nn.Linear(8, 4), Contrastive()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for images, texts in batches:
        loss = criterion(encoder(images), encoder(texts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main([(torch.randn(4, 8), torch.randn(4, 8))])
""",
    "objects, and an attribute": """\
import torch
from torch.distributed import (
    all_gather,
    all_gather_object,  # of any kind
)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(3, 2)

    def forward(self, batch):
        self.features = self.encoder(batch)
        gathered = [torch.zeros_like(self.features) for _ in range(2)]
        all_gather(gathered, self.features.contiguous(), async_op=False)  # GG501
        scale = self.features.mean()
        scales = [None] * 2
        all_gather_object(obj=scale, object_list=scales, group=None)  # GG501
        return torch.cat(gathered).sum() * sum(scales)


net = Net()
net(torch.ones(4, 3)).backward()
""",
    "one tensor": """\
import torch
import torch.distributed as dist

encoder, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
features = encoder(torch.ones(4, 3))
gathered = torch.empty(dist.get_world_size() * 4, 2)
dist.all_gather_into_tensor(gathered, features)  # GG501
head(gathered).sum().backward()
""",
    "Accelerate": """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
encoder = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
encoder, optimizer = accelerator.prepare(encoder, optimizer)
features = encoder(torch.ones(4, 3))
everyone = accelerator.gather(features)  # GG501
accelerator.backward((features @ everyone.T).logsumexp(1).mean())
optimizer.step()
""",
    "Lightning": """\
import lightning
import torch


class Contrast(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(3, 2)

    def training_step(self, batch, index):
        features = self.encoder(batch)
        everyone = self.all_gather(features).flatten(0, 1)  # GG501
        return (features @ everyone.T).logsumexp(1).mean()
""",
}

FIXED: Examples = {
    "a list": BAD["a list"].replace(
        "features)  # GG501\n", "features)  # GG501\n    gathered[dist.get_rank()] = features\n"
    ),
    "in a loss": BAD["in a loss"]
    .replace("get_world_size\n", "get_world_size, get_rank\n", 1)
    .replace("features)  # GG501\n", "features)  # GG501\n    gathered[get_rank()] = features\n"),
    "objects, and an attribute": BAD["objects, and an attribute"]
    .replace("of any kind\n", "of any kind\n    get_rank,\n")
    .replace(
        "async_op=False)  # GG501\n",
        "async_op=False)  # GG501\n        gathered[get_rank()] = self.features.contiguous()\n",
    )
    .replace(
        "group=None)  # GG501\n",
        "group=None)  # GG501\n        scales[get_rank()] = scale\n",
    ),
}

GOOD: Examples = {
    "the own part put back": """\
import torch
import torch.distributed as dist

encoder, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
features = encoder(torch.ones(4, 3))
rank, size = dist.get_rank(), dist.get_world_size()
gathered = [torch.empty_like(features) for _ in range(size)]
dist.all_gather(gathered, features)
head(torch.cat([*gathered[:rank], features, *gathered[rank + 1 :]])).sum().backward()
gathered[rank] = features
head(torch.cat(gathered)).sum().backward()
everyone = torch.empty(size * 4, 2)
dist.all_gather_into_tensor(everyone, features)
everyone[rank * 4 : rank * 4 + 4] = features
head(everyone).sum().backward()
""",
    "a collective with a gradient": """\
import torch
import torch.distributed.nn

encoder, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
features = torch.distributed.nn.all_gather(encoder(torch.ones(4, 3)))
head(torch.cat(features)).sum().backward()
""",
    "metrics": """\
import torch
import torch.distributed as dist

net = torch.nn.Linear(3, 1)
loss = net(torch.ones(4, 3)).sum()
losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
dist.all_gather(losses, loss)
print(torch.stack(losses).mean().item())
with torch.no_grad():
    dist.all_gather(losses, loss)
weight = torch.stack(losses).mean()
(loss / weight).backward()
""",
    "a function of its own": """\
import torch
import torch.distributed as dist


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features):
        gathered = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, features)
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *gradients):
        together = torch.stack(gradients)
        dist.all_reduce(together)
        return together[dist.get_rank()]


encoder = torch.nn.Linear(3, 2)
torch.cat(Gather.apply(encoder(torch.ones(4, 3)))).sum().backward()
""",
}
