"""A collective gives tensors without history, and a loss is made of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.fixes.changes import Fix, ReplaceStatement
from gradguard_lint.fixes.written import (
    assigned,
    bindings,
    imported,
    importing,
    is_open,
    source_of,
)
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Examples, Report, code, severed_by
from gradguard_lint.words import words

CODE = "GG501"

_PARAMETERS = ("tensor_list", "tensor", "group", "async_op")
"""Names of `all_gather`, which fills a list with one tensor a rank."""
_FUNCTIONAL = "torch.distributed.nn.functional"
_NEW = words("empty_like zeros_like ones_like empty zeros ones new_empty new_zeros new_ones")
"""Functions whose results share their memory with nothing else."""


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
                fix=_with_graph(call),
            )


def _with_graph(call: Effect) -> Fix | None:
    """The call of the collective that returns what it gathers with its graph."""
    site = call.site
    node, statement, module = site.node, site.statement, site.module
    if (
        call.what != "`all_gather`"
        or not isinstance(node, ast.Call)
        or not isinstance(statement, ast.Expr)
        or statement.value is not node
        or is_open(node)
    ):
        return None
    given = dict(zip(_PARAMETERS, node.args, strict=False))
    given |= {item.arg: item.value for item in node.keywords if item.arg}
    outputs, own, group, waits = (given.get(name) for name in _PARAMETERS)
    if own is None or not (waits is None or _is(waits, False)):
        return None
    if not isinstance(outputs, ast.Name) or not _is_list_of_new(module, outputs.id):
        return None
    changes = importing(module, _FUNCTIONAL)
    if changes is None or imported(module).get("torch") not in (None, "torch"):
        return None
    arguments = [source_of(module, own)]
    if group is not None and not _is(group, None):
        arguments.append(source_of(module, group))
    line = f"{outputs.id}[:] = {_FUNCTIONAL}.all_gather({', '.join(arguments)})"
    message = "gather with a collective that has a gradient"
    return Fix("unsafe", message, (ReplaceStatement(module, statement, line), *changes))


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_list_of_new(module: Module, name: str) -> bool:
    """Whether `name` is always a list of tensors that nothing else in `module` is a view of."""
    values = [
        value
        for node in ast.walk(module.tree)
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and target.id == name
    ]
    return len(values) == bindings(module.tree, name) and all(map(_makes_new, values))


def _makes_new(node: ast.expr) -> bool:
    made = node.elt if isinstance(node, ast.ListComp) else None
    function = made.func if isinstance(made, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in _NEW


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
    print(sorted(results.get() for _ in range(2)))  # repaired: [[2.0, 2.0], [4.0, 4.0]]
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
    "an attribute": """\
import torch
from torch.distributed import all_gather


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(3, 2)

    def forward(self, batch):
        self.features = self.encoder(batch)
        gathered = [torch.zeros_like(self.features) for _ in range(2)]
        all_gather(gathered, self.features.contiguous(), async_op=False)  # GG501
        return torch.cat(gathered).sum()


net = Net()
net(torch.ones(4, 3)).backward()
""",
    "objects": """\
import torch
from torch.distributed import all_gather_object

scale = torch.nn.Linear(3, 1)(torch.ones(3))
scales = [None] * 2
all_gather_object(obj=scale, object_list=scales, group=None)  # GG501
sum(scales).backward()
""",
    "views of one buffer": """\
import torch
import torch.distributed as dist

encoder, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
features = encoder(torch.ones(4, 3))
buffer = torch.empty(dist.get_world_size() * 4, 2)
gathered = list(buffer.split(4))
dist.all_gather(gathered, features)  # GG501
head(torch.cat(gathered)).sum().backward()
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
    "a list": BAD["a list"]
    .replace("as dist\n", "as dist\nimport torch.distributed.nn.functional\n")
    .replace(
        "dist.all_gather(gathered, features)",
        "gathered[:] = torch.distributed.nn.functional.all_gather(features)",
    ),
    "in a loss": BAD["in a loss"]
    .replace("import torch\n", "import torch\nimport torch.distributed.nn.functional\n", 1)
    .replace(
        "    all_gather(gathered, features)",
        "    gathered[:] = torch.distributed.nn.functional.all_gather(features)",
    ),
    "an attribute": BAD["an attribute"]
    .replace("import torch\n", "import torch\nimport torch.distributed.nn.functional\n", 1)
    .replace(
        "        all_gather(gathered, self.features.contiguous(), async_op=False)",
        "        gathered[:] = torch.distributed.nn.functional.all_gather("
        "self.features.contiguous())",
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
