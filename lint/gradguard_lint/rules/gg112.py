"""The parent goes on with a model that a worker returned, and with the old one's optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step
from gradguard_lint.domain.payloads import (
    Backward,
    GradWrite,
    ModelChange,
    OptimizerChange,
    OptimizerStep,
    Write,
)
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import GRADIENT, Atom, Instance, Tensor, Thing, Unknown
from gradguard_lint.rules.base import Examples, Report, place

CODE = "GG112"


def check(program: Program) -> Iterator[Report]:
    if not program.returned:
        return
    for step in program.effects_of(OptimizerStep):
        held = _held(program, step) if step.worker is None else set()
        for call in program.calls if held else ():
            if call.ident not in step.calls:
                continue
            sent = _sent(call)
            back = {ident for ident, (by, _) in program.returned.items() if by == call.ident}
            said = f"the model goes to {call.workers}, and a copy comes back"
            if not held.isdisjoint(sent):
                which = f"that was sent to {call.workers}"
            elif not held.isdisjoint(_reached(program.copies, sent)):
                which = f"a copy of which was sent to {call.workers}"
            elif not held.isdisjoint(_reached(program.replaced, back)):
                which = f"that is replaced by one that comes back from {call.workers}"
                said = "the other model comes back from here"
            else:
                continue
            backward = _through_the_other(program, step, call, held, back)
            if backward is None:
                continue
            yield Report(
                step.site,
                f"{step.what} steps the model {which}, but the "
                f"backward pass at {place(backward.site, step.site)} gives gradients to the model "
                "that came back. This optimizer does not hold that model and never updates it.",
                (
                    Step(call.site, said),
                    Step(backward.site, "what came back gets its gradients here"),
                ),
                call=call,
            )
            break


def _held(program: Program, step: Effect) -> set[int]:
    """The models whose parameters the optimizer holds; none where that is not certain."""
    found: set[int] = set()
    for atom in step.target.atoms:
        parameters = atom.part("parameters") if isinstance(atom, Thing) else None
        if parameters is None or any(isinstance(part, Unknown) for part in inner(parameters)):
            return set()
        if any(atom in change.target.atoms for change in program.effects_of(OptimizerChange)):
            return set()
        found |= idents(parameters)
    return found


def _sent(call: ParallelCall) -> set[int]:
    """The models that go to the workers of `call`."""
    return {
        atom.ident
        for task in call.tasks
        for _, atom, _ in task.contents
        if isinstance(atom, (Instance, Thing))
    }


def _reached(links: Mapping[int, set[int]], idents: set[int]) -> set[int]:
    """What `links` lead to from some of `idents`, in one step or several."""
    found: set[int] = set()
    pending = idents
    while pending:
        pending = {other for ident in pending for other in links.get(ident, ())} - found
        found |= pending
    return found


def _through_the_other(
    program: Program, step: Effect, call: ParallelCall, held: set[int], back: set[int]
) -> Effect | None:
    """The parent's backward through what came `back`, where all of them go there, and nothing else
    changes that model."""
    found: Effect | None = None
    for effect in program.effects_of(Backward, GradWrite, ModelChange, OptimizerStep, Write):
        if effect.worker is not None or call.ident not in effect.calls:
            continue
        reached = idents(effect.target)
        if isinstance(effect.payload, GradWrite):
            if not reached or reached & held:
                return None  # the gradients are carried over
            continue
        if isinstance(effect.payload, Backward) and effect.root == step.root:
            if not reached or reached & held:
                return None
            found = effect if reached & back else found
        elif reached & (held if _is_given_other_values(effect, held | back) else back):
            return None  # stepped by hand, by another optimizer, or copied back
    return found


def _is_given_other_values(effect: Effect, models: set[int]) -> bool:
    """Whether a model is given values that none of `models` has had a part in."""
    change = effect.payload
    if isinstance(change, ModelChange):
        return True
    if not isinstance(change, Write) or not change.whole:
        return False
    given = [*inner(change.value)]
    return (
        bool(given)
        and not any(isinstance(atom, Unknown) or _may_be_a_step(atom) for atom in given)
        and idents(change.value).isdisjoint(models)
    )


def _may_be_a_step(atom: Atom) -> bool:
    """Whether `atom` may be made of gradients."""
    return isinstance(atom, Tensor) and (
        atom.grad == "unknown" or GRADIENT in (atom.ident, *atom.sources)
    )


BAD: Examples = {
    "training goes on": """\
import torch
from joblib import Parallel, delayed


def pretrain(net, batch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).pow(2).mean().backward()
    optimizer.step()
    return net


if __name__ == "__main__":
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net = Parallel(n_jobs=2)(delayed(pretrain)(net, torch.ones(2, 3)) for _ in range(2))[0]
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()  # GG112
""",
    "the best of several, in every epoch, in a class": """\
from concurrent.futures import ProcessPoolExecutor

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 4)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def explore(net, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = net(torch.ones(2, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item(), net


class Trainer:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.loss = torch.nn.MSELoss()

    def epoch(self, x, y):
        with ProcessPoolExecutor() as pool:
            futures = [pool.submit(explore, self.net, lr) for lr in (0.1, 0.01)]
            results = [future.result() for future in futures]
        loss, self.net = min(results, key=lambda pair: pair[0])
        self.optimizer.zero_grad()
        loss = self.loss(self.net(x), y)
        loss.backward()
        self.optimizer.step()  # GG112


if __name__ == "__main__":
    trainer = Trainer()
    for _ in range(3):
        trainer.epoch(torch.ones(2, 3), torch.zeros(2, 1))
""",
    "a copy is sent": """\
import copy

import torch
from joblib import Parallel, delayed


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.head(x)


def pretrain(net, batch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).pow(2).mean().backward()
    optimizer.step()
    return net


if __name__ == "__main__":
    batch = torch.ones(2, 3)
    for net in (torch.nn.Linear(3, 1), Net()):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        spare = copy.deepcopy(net)
        tasks = [delayed(pretrain)(copy.deepcopy(spare), batch) for _ in range(2)]
        net = Parallel(n_jobs=2)(tasks)[0]
        net(batch).pow(2).mean().backward()
        optimizer.step()  # GG112
""",
}

_START = """\
import copy

import torch
from joblib import Parallel, delayed


def train(net, batch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).pow(2).mean().backward()
    optimizer.step()
    return net


def train_both(net, optimizer, batch):
    net(batch).pow(2).mean().backward()
    optimizer.step()
    return net, optimizer


batch = torch.ones(2, 3)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""

GOOD: Examples = {
    "a new optimizer": _START
    + """\
for epoch in range(3):
    net = Parallel(n_jobs=2)(delayed(train)(net, batch) for _ in range(2))[0]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).mean().backward()
    optimizer.step()
""",
    "the state is loaded": _START
    + """\
trained = Parallel(n_jobs=2)(delayed(train)(net, batch) for _ in range(2))
net.load_state_dict(trained[0].state_dict())
optimizer.zero_grad()
net(batch).mean().backward()
optimizer.step()
""",
    "other parameters for the optimizer": _START
    + """\
net = Parallel(n_jobs=2)(delayed(train)(net, batch) for _ in range(2))[0]
optimizer.param_groups[0]["params"] = list(net.parameters())
net(batch).mean().backward()
optimizer.step()
""",
    "both come back": _START
    + """\
tasks = [delayed(train_both)(net, optimizer, batch)]
net, optimizer = Parallel(n_jobs=2)(tasks)[0]
net(batch).mean().backward()
optimizer.step()
""",
    "an ensemble beside the model": _START
    + """\
teachers = Parallel(n_jobs=2)(delayed(train)(copy.deepcopy(net), batch) for _ in range(2))
for teacher in teachers:
    (net(batch) - teacher(batch)).pow(2).mean().backward()
optimizer.step()
""",
    "a copy is trained, and its gradients are carried over": _START
    + """\
adapted = Parallel(n_jobs=2)(delayed(train)(copy.deepcopy(net), batch) for _ in range(2))[0]
adapted(batch).mean().backward()
for own, other in zip(net.parameters(), adapted.parameters()):
    own.grad = other.grad
optimizer.step()
""",
    "a copy is trained, and the model beside it": _START
    + """\
adapted = Parallel(n_jobs=2)(delayed(train)(copy.deepcopy(net), batch) for _ in range(2))[0]
adapted(batch).mean().backward()
net(batch).mean().backward()
optimizer.step()
""",
}
