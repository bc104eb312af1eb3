"""A module updates its running statistics in a worker, and nobody brings them back."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import ModelChange, ModelUse, OptimizerStep, Write
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import (
    COPIED,
    FIGURE,
    GRADIENT,
    OUTPUT,
    Atom,
    Const,
    Instance,
    Items,
    Table,
    TaskCall,
    Tensor,
    Thing,
    is_number,
)
from gradguard_lint.rules.base import Examples, Report, captures, place, sent_with

CODE = "GG111"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        call = task.call
        if not call.channel.ships or not call.channel.answers or call.channel.forking_pickler:
            continue  # memory that is inherited; nothing that comes back; memory that is shared
        sent = _modules(program, task)
        update = next((effect for effect in task.effects if _updates(program, effect, sent)), None)
        if update is None or _brings_back(program, task, sent):
            continue
        use = _use(program, task, sent)
        if use is not None:
            sent_by = _sender(program, task, update)
            yield Report(
                sent_by.site,
                f"`{task.name}` updates the running statistics of a copy in {task.call.workers} "
                f"and returns none of them: the module that {place(use.site, sent_by.site)} uses "
                "keeps its old statistics.",
                (
                    sent_with(task, sent_by),
                    Step(update.site, "a forward pass updates the statistics of the copy here"),
                    Step(use.site, "the module is used again here"),
                ),
                call=task.call,
            )


def _sender(program: Program, task: TaskRun, update: Effect) -> TaskCall:
    """What the module crosses with that `update` changes: the task, or its worker's initializer."""
    for sent, crossing in task.split_by_initializer(task.contents):
        if _updates(program, update, _modules_in(crossing)):
            return sent
    return task.task


def _modules_in(crossing: list[tuple[str, Atom, bool]]) -> set[int]:
    """The identities of the modules that cross."""
    return {
        atom.ident
        for _, atom, _ in crossing
        if isinstance(atom, Instance) or (isinstance(atom, Thing) and atom.kind == "model")
    }


def _modules(program: Program, task: TaskRun) -> set[int]:
    """The identities of the modules that the task is sent with."""
    found = _modules_in(task.contents)
    for _, value, _ in captures(program, task):
        found |= idents(value)
    return found


def _updates(program: Program, effect: Effect, sent: set[int]) -> bool:
    """Whether a module that was sent changes its buffers."""
    if _trains(effect):
        return not idents(effect.target).isdisjoint(sent)
    return isinstance(effect.payload, Write) and any(
        program.buffers.get(tensor.ident) in sent for tensor in effect.target.tensors()
    )


def _trains(effect: Effect) -> bool:
    return isinstance(effect.payload, ModelUse) and effect.payload.does == "train"


def _brings_back(program: Program, task: TaskRun, sent: set[int]) -> bool:
    """Whether the result may have the buffers, or the copy is the worker's own to train."""
    if task.result is None:
        return True
    parameters = False
    for atom in inner(task.result):
        if isinstance(atom, Tensor):
            of_it = {atom.ident, *atom.sources, *program.copies.get(atom.ident, ())}
            if not of_it.isdisjoint(program.buffers):
                return True
            copied = atom.grad == "none" or COPIED in of_it
            copied = copied and of_it.isdisjoint((FIGURE, OUTPUT))
            parameters = parameters or not sent.isdisjoint(of_it if copied else (atom.ident,))
            if atom.framework == "numpy" and of_it.isdisjoint((FIGURE, GRADIENT, OUTPUT, *sent)):
                return True
        elif is_number(atom):
            continue
        elif not isinstance(atom, (Const, Items, Table)):
            return True
    return not parameters and any(of_kinds(task.effects, OptimizerStep))


def _use(program: Program, task: TaskRun, sent: set[int]) -> Effect | None:
    """Where the parent goes on with a module that was sent, and does not write its buffers."""
    found = None
    for effect in program.effects_of(ModelChange, ModelUse, OptimizerStep, Write):
        if effect.worker is not None or task.call.ident not in effect.calls:
            continue
        reached = {program.buffers.get(ident, ident) for ident in idents(effect.target)}
        if reached.isdisjoint(sent):
            continue
        if isinstance(effect.payload, ModelChange):
            if _leaves_buffers(program, effect, sent):
                continue
            return None
        if _trains(effect):
            return None  # the parent collects them itself
        if not isinstance(effect.payload, Write) or _in_forward(effect):
            found = found or effect
        elif not idents(effect.target).isdisjoint(program.buffers):
            return None
    return found


def _leaves_buffers(program: Program, load: Effect, sent: set[int]) -> bool:
    """Whether a module takes over nothing but parameters that a worker returned."""
    change = load.payload
    if not isinstance(change, ModelChange) or change.extent != "partial":
        return False
    taken = [atom for atom in inner(change.value) if not isinstance(atom, (Items, Table))]
    return bool(taken) and all(
        isinstance(atom, Tensor)
        and (made_from := {atom.ident, *atom.sources} - {0, COPIED})
        and {program.sent_back.get(ident, ident) for ident in made_from} <= sent
        for atom in taken
    )


def _in_forward(effect: Effect) -> bool:
    """Whether a forward pass of the module does this."""
    places = (effect.site, *(step.site for step in effect.chain))
    return any((place.function or "").endswith(".forward") for place in places)


_CLASS = """\
import torch
from joblib import Parallel, delayed


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).mean()


"""

BAD: Examples = {
    "gradients are returned": _CLASS
    + """\
def gradients(net, batch):
    net(batch).backward()
    return [p.grad for p in net.parameters()]


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    results = Parallel(n_jobs=2)(
        delayed(gradients)(net, torch.randn(2, 3, 8, 8)) for _ in range(2)  # GG111
    )
    for parameter, *grads in zip(net.parameters(), *results):
        parameter.grad = sum(grads)
    optimizer.step()
net.eval()
print(net(torch.randn(2, 3, 8, 8)))
""",
    "statistics that are collected in vain": """\
import torch
from joblib import Parallel, delayed


def calibrate(net, batch):
    with torch.no_grad():
        return net(batch).mean().item()


if __name__ == "__main__":
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with Parallel(n_jobs=2) as parallel:
        print(parallel(delayed(calibrate)(net, torch.randn(8, 3)) for _ in range(4)))  # GG111
    torch.save(net.state_dict(), "net.pt")
""",
    "parameters alone are loaded": """\
import torch
from joblib import Parallel, delayed


def train(net, batch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).square().mean().backward()
    optimizer.step()
    return {name: one.detach() for name, one in net.named_parameters()}


net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
for _ in range(3):
    states = Parallel(n_jobs=2)(delayed(train)(net, torch.randn(8, 3)) for _ in range(2))  # GG111
    mean = {name: sum(state[name] for state in states) / 2 for name in states[0]}
    net.load_state_dict(mean, strict=False)
net.eval()
print(net(torch.ones(1, 3)))
""",
    "a buffer of its own": """\
import torch
from joblib import Parallel, delayed


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + len(x)
        return self.scale(x)


def loss(net, batch):
    return net(batch).pow(2).mean().item()


net = Counter()
losses = Parallel(n_jobs=2)(delayed(loss)(net, torch.ones(2, 3)) for _ in range(2))  # GG111
torch.save(net, "net.pt")
""",
}

GOOD: Examples = {
    "buffers, state or module are returned": _CLASS
    + """\
def with_buffers(net, batch):
    net(batch).backward()
    return [p.grad for p in net.parameters()], [b.clone() for b in net.buffers()]


def with_mean(net, batch):
    net(batch).backward()
    return [p.grad for p in net.parameters()], net.norm.running_mean


def with_state(net, batch):
    loss = net(batch)
    return loss.item(), net.state_dict()


def whole(net, batch):
    net(batch).backward()
    return net


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batch = torch.randn(2, 3, 8, 8)
for work in (with_buffers, with_mean, with_state, whole):
    results = Parallel(n_jobs=2)(delayed(work)(net, batch) for _ in range(2))
    optimizer.step()
""",
    "statistics that the parent collects itself": """\
import torch
from joblib import Parallel, delayed


def gradients(net, batch):
    return torch.autograd.grad(net(batch).square().mean(), list(net.parameters()))


net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batch = torch.randn(8, 3)
results = Parallel(n_jobs=2)(delayed(gradients)(net, part) for part in batch.chunk(2))
for parameter, *grads in zip(net.parameters(), *results):
    parameter.grad = sum(grads)
optimizer.step()
with torch.no_grad():
    net(batch)
net.eval()
print(net(batch))
""",
    "a load that may bring the buffers": """\
import torch
from joblib import Parallel, delayed


def train(net, batch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).square().mean().backward()
    optimizer.step()
    return {name: one.detach() for name, one in net.named_parameters()}


def train_all(net, batch):
    new = train(net, batch)
    new.update({name: one.clone().float() for name, one in net.named_buffers()})
    return new


def with_means(net, batch):
    return train(net, batch), batch.mean(0)


net = torch.nn.BatchNorm1d(3)
batch = torch.randn(8, 3)
((new, mean),) = Parallel(n_jobs=2)([delayed(with_means)(net, batch)])
new["running_mean"] = mean
net.load_state_dict(new, strict=False)
net.eval()
print(net(batch))
other = torch.nn.BatchNorm1d(3)
(new,) = Parallel(n_jobs=2)([delayed(train_all)(other, batch)])
other.load_state_dict(new, strict=False)
other.eval()
print(other(batch))
another = torch.nn.BatchNorm1d(3)
(new,) = Parallel(n_jobs=2)([delayed(train)(another, batch)])
another.load_state_dict(new, strict=False)
torch.optim.swa_utils.update_bn([batch], another)
another.eval()
print(another(batch))
""",
    "evaluation mode, threads, and norms without statistics": _CLASS
    + """\
def score(net, batch):
    net.eval()
    return net(batch).item()


def train_loss(net, batch):
    return net(batch).mean().item()


batch = torch.randn(2, 3, 8, 8)
net = Net()
print(Parallel(n_jobs=2)(delayed(score)(net, batch) for _ in range(2)))
print(Parallel(n_jobs=2, prefer="threads")(delayed(train_loss)(net, batch) for _ in range(2)))
net.eval()
print(Parallel(n_jobs=2)(delayed(train_loss)(net, batch) for _ in range(2)))
print(net(batch))
plain = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.InstanceNorm2d(4)
)
print(Parallel(n_jobs=2)(delayed(train_loss)(plain, batch) for _ in range(2)))
torch.save(plain.state_dict(), "plain.pt")
""",
    "a copy of the worker's own, and a module that is not used again": _CLASS
    + """\
def tune(net, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(2, 3, 8, 8))
        loss.backward()
        optimizer.step()
    return loss.item()


def features(net, batch):
    return net(batch).item()


net = Net()
scores = Parallel(n_jobs=2)(delayed(tune)(net, lr) for lr in (0.1, 0.01))
torch.save(net.state_dict(), "start.pt")
other = Net()
print(Parallel(n_jobs=2)(delayed(features)(other, torch.randn(2, 3, 8, 8)) for _ in range(2)))
""",
    "a pool shares the memory of the statistics": """\
import torch
from multiprocessing import Pool


def gradient(task):
    net, x = task
    return torch.autograd.grad(net(x).sum(), net.weight)[0]


if __name__ == "__main__":
    net = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Pool(2) as pool:
        grads = pool.map(gradient, [(net, torch.randn(4, 3)) for _ in range(2)])
    net.weight.grad = sum(grads)
    optimizer.step()
    net.eval()
    print(net(torch.ones(1, 3)))
""",
}
