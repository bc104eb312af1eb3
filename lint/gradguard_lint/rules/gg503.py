"""A distributed sampler shuffles, and gives the order of the first epoch in each."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.values import Site, Thing
from gradguard_lint.fixes.changes import Change, Fix, InsertBefore, Replace
from gradguard_lint.fixes.recipes import is_bound
from gradguard_lint.rules.base import Examples, Report
from gradguard_lint.words import words

CODE = "GG503"

_TRAINING = words("backward step manual_backward")


def check(program: Program) -> Iterator[Report]:
    for effect in program.kinds("epoch-repeated"):
        loop = effect.place
        if loop is None or not _trains(program, effect, loop):
            continue
        sampler = next(effect.value.things("sampler"), None)
        if sampler is None:
            continue
        trace = [] if sampler.site is None else [Step(sampler.site, "the sampler is made here")]
        yield Report(
            loop,
            f"`{effect.what}` gives the same order in each iteration of this loop: its "
            "DistributedSampler shuffles, but `set_epoch` is not called.",
            (*trace, *effect.chain, Step(effect.site, "the loader is iterated here")),
            what=effect.what,
            fix=_set_epoch(effect, loop, sampler),
        )


def _trains(program: Program, effect: Effect, loop: Site) -> bool:
    """Whether the data is for training, where anything of the program is."""
    around = effect.site.statement
    place = around if isinstance(around, (ast.For, ast.AsyncFor)) else loop.node
    inside = {id(node) for node in ast.walk(place)}
    if any(_steps(node) for node in ast.walk(place)):
        return True
    trains = False
    for other in program.kinds("backward", "step"):
        trains = True
        if any(id(step.site.node) in inside for step in (*other.chain, Step(other.site, ""))):
            return True
    modules = {effect.site.module, loop.module}
    return not trains and not any(_steps(node) for m in modules for node in ast.walk(m.tree))


def _steps(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _TRAINING
    )


# -- the repair ------------------------------------------------------------------------------------


def _set_epoch(effect: Effect, loop: Site, sampler: Thing) -> Fix | None:
    """``sampler.set_epoch(epoch)`` at the top of the loop over epochs."""
    node, module = loop.node, loop.module
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name):
        return None
    written = _sampler(effect, loop, sampler)
    if written is None or not _counts(node.iter):
        return None
    epoch = node.target.id
    changes: tuple[Change, ...] = ()
    if epoch == "_":
        if is_bound(module, "epoch"):
            return None
        epoch = "epoch"
        changes = (Replace(module, node.target, epoch),)
    line = InsertBefore(module, node.body[0], f"{written}.set_epoch({epoch})")
    return Fix("unsafe", "tell the sampler which epoch it is", (line, *changes))


def _counts(source: ast.expr) -> bool:
    """Whether a loop over `source` counts."""
    if not isinstance(source, ast.Call):
        return False
    if isinstance(source.func, ast.Name) and source.func.id == "range":
        return True
    first = source.args[0] if source.args else None
    return ast.unparse(source.func).endswith(("tqdm", "trange")) and (
        first is None or _counts(first) or ast.unparse(source.func).endswith("trange")
    )


def _sampler(effect: Effect, loop: Site, sampler: Thing) -> str | None:
    """What the sampler is called where the loop stands."""
    made = sampler.site
    statement = made.statement if made is not None else None
    if (
        made is not None
        and isinstance(statement, ast.Assign)
        and statement.value is made.node
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and made.module is loop.module
        and made.function == loop.function
        and _bindings(loop.module.tree, statement.targets[0].id) == 1
    ):
        return statement.targets[0].id
    loader = effect.site.node
    if isinstance(loader, ast.Call) and loader.args:
        loader = loader.args[0]  # enumerate, tqdm
    here = {id(node) for node in ast.walk(loop.node)}
    if not isinstance(loader, (ast.Name, ast.Attribute)) or id(loader) not in here:
        return None
    given = next(effect.target.things("loader"), None)
    if given is None or len(effect.target.choices) > 1:
        return None
    own = "sampler" if given.part("sampler") is not None else "batch_sampler.sampler"
    return f"{ast.unparse(loader)}.{own}"


def _bindings(tree: ast.AST, name: str) -> int:
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )


BAD: Examples = {
    "a loop over epochs": """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = [1, 2, 3, 4, 5, 6, 7, 8]
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=4, sampler=sampler)
orders = []
for _ in range(3):  # GG503
    for batch in loader:
        orders.append(batch.tolist())
print(orders[0] == orders[1] == orders[2])  # repaired: False
""",
    "training and evaluation in functions": """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def loader_of(data):
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 0))


def train_one_epoch(net, loader, optimizer, seen):
    for number, (batch,) in enumerate(loader):
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
        seen += batch.flatten().tolist()


def evaluate(net, loader):
    with torch.no_grad():
        return sum(net(batch).sum() for (batch,) in loader)


def main():
    data = TensorDataset(torch.arange(16.0).view(16, 1))
    train, test = loader_of(data), loader_of(data)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    epochs = []
    for epoch in range(2):  # GG503
        seen = []
        train_one_epoch(net, train, optimizer, seen)
        evaluate(net, test)
        epochs.append(seen)
    print(epochs[0] == epochs[1])  # repaired: False


main()
""",
    "in a loop": """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

data = TensorDataset(torch.arange(16.0).view(16, 1))
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 0))
epochs = []
for epoch in range(2):  # GG503
    # what this rank sees
    epochs.append([])
    for (batch,) in loader:
        epochs[-1] += batch.flatten().tolist()
print(epochs[0] == epochs[1])  # repaired: False
""",
}

FIXED: Examples = {
    "a loop over epochs": BAD["a loop over epochs"].replace(
        "for _ in range(3):  # GG503\n",
        "for epoch in range(3):  # GG503\n    sampler.set_epoch(epoch)\n",
    ),
    "in a loop": BAD["in a loop"].replace(
        "    # what this rank sees\n",
        "    # what this rank sees\n    loader.sampler.set_epoch(epoch)\n",
    ),
}

GOOD: Examples = {
    "the epoch is set": """\
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler


def set_epoch(loader, epoch):
    loader.batch_sampler.sampler.set_epoch(epoch)


data = [1, 2, 3, 4, 5, 6, 7, 8]
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=4, sampler=sampler)
batches = DataLoader(
    data, batch_sampler=BatchSampler(DistributedSampler(data, 2, 0), 2, drop_last=True)
)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for batch in loader:
        print(batch)
    set_epoch(batches, epoch)
    for batch in batches:
        print(batch)
""",
    "without an order, and one epoch": """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = [1, 2, 3, 4, 5, 6, 7, 8]
plain = DataLoader(data, sampler=DistributedSampler(data, 2, 0, shuffle=False))
for epoch in range(3):
    for batch in plain:
        print(batch)
once = DataLoader(data, sampler=DistributedSampler(data, 2, 0))
for epoch in range(1):
    for batch in once:
        print(batch)
""",
    "Accelerate sets it": """\
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = [1, 2, 3, 4, 5, 6, 7, 8]
accelerator = Accelerator()
loader = accelerator.prepare(DataLoader(data, sampler=DistributedSampler(data, 2, 0)))
for epoch in range(3):
    for batch in loader:
        print(batch)
""",
}
