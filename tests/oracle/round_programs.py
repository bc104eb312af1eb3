"""Draws torch programs of several rounds, in which workers and the parent use one network.

As for the other families: a program is right where `run(2)` returns what `run(1)` does, which runs
all in one process. The parent clears, computes, changes and uses gradients in any order; workers
measure, train or return gradients, behind one of several doors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from textwrap import indent

HEADER = """\
import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import torch
from joblib import Parallel, delayed
from torch import nn


class Net(nn.Module):
    def __init__(self, normed=False):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4) if normed else nn.Identity()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x)))) * self.scale


def loss_of(net, x, y):
    return ((net(x) - y) ** 2).mean()


def values(named):
    return {k: None if t is None else t.detach().double().tolist() for k, t in named.items()}


def seen_of(result):
    return float(result.detach().double().sum() if isinstance(result, torch.Tensor) else result)
"""

_ALONE = """\
def spread(n_jobs, work, tasks):
    if n_jobs == 1:
        return [work(*task) for task in tasks]
    context = multiprocessing.get_context("fork")
"""

_ANSWERED = """\
def answered(queue, index, work, task):
    queue.put((index, pickle.dumps(work(*task))))


"""

DOORS = {
    "loky": """\
def spread(n_jobs, work, tasks):
    return Parallel(n_jobs, batch_size=1)(delayed(work)(*task) for task in tasks)
""",
    "multiprocessing": """\
def spread(n_jobs, work, tasks):
    parallel = Parallel(n_jobs, backend="multiprocessing", batch_size=1)
    return parallel(delayed(work)(*task) for task in tasks)
""",
    "executor": _ALONE
    + """\
    with ProcessPoolExecutor(n_jobs, mp_context=context) as executor:
        return list(executor.map(work, *zip(*tasks)))
""",
    "submit": _ALONE
    + """\
    with ProcessPoolExecutor(n_jobs, mp_context=context) as executor:
        futures = [executor.submit(work, *task) for task in tasks]
        return [future.result() for future in futures]
""",
    "pool": _ALONE
    + """\
    with context.Pool(n_jobs) as pool:
        return pool.starmap(work, tasks)
""",
    "inherited": """\
def begin(work, tasks):
    global GIVEN
    GIVEN = work, tasks


def given(index):
    work, tasks = GIVEN
    return pickle.dumps(work(*tasks[index]))


"""
    + _ALONE
    + """\
    with context.Pool(n_jobs, begin, (work, tasks), maxtasksperchild=1) as pool:
        return [pickle.loads(one) for one in pool.map(given, range(len(tasks)), chunksize=1)]
""",
    "process": _ANSWERED
    + _ALONE
    + """\
    queue = context.SimpleQueue()
    processes = []
    for index, task in enumerate(tasks):
        processes.append(context.Process(target=answered, args=(queue, index, work, task)))
        processes[-1].start()
    results = {index: pickle.loads(one) for index, one in (queue.get() for _ in processes)}
    for process in processes:
        process.join()
    return [results[index] for index in range(len(tasks))]
""",
    "shared": _ANSWERED
    + _ALONE
    + """\
    results = []
    for index, task in enumerate(tasks):
        queue = context.SimpleQueue()
        process = context.Process(target=answered, args=(queue, index, work, task))
        process.start()
        results.append(pickle.loads(queue.get()[1]))
        process.join()
    return results
""",
}
"""How `spread(n_jobs, work, tasks)` hands out work."""

_SENT_AS_SHARED = ("executor", "submit", "pool")
"""Doors behind which tensors arrive in shared memory: tasks that write there race."""


def draw(seed: int) -> str:
    """The source of the program with this number."""
    random = Random(seed)
    door = random.choice(list(DOORS))
    normed = random.random() < 0.25 and door not in _SENT_AS_SHARED
    works = [_work(random, number, door) for number in range(random.choice([1, 1, 2]))]
    beside = random.random() < 0.2
    draw_round = Rounds(random, works, beside, restores=random.random() < 0.2)
    body = f"net = Net(normed={normed})\n"
    body += random.choice(
        [
            "optimizer = torch.optim.SGD(net.parameters(), lr=0.3)\n",
            "optimizer = torch.optim.SGD(net.parameters(), lr=0.3)\n",
            "optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)\n",
            "optimizer = torch.optim.Adam(net.parameters(), lr=0.1)\n",
            "optimizer = torch.optim.SGD(net.head.parameters(), lr=0.3)\n",
        ]
    )
    if door == "shared":
        body += "net.share_memory()\n"
        if random.random() < 0.4:
            body += "for p in net.parameters():\n    p.grad = torch.zeros_like(p).share_memory_()\n"
    if beside:
        body += "aux = nn.Linear(3, 1)\nother = torch.optim.SGD(aux.parameters(), lr=0.3)\n"
    body += "X, Y = torch.rand(3, 5, 3), torch.rand(3, 5, 1)\nseen = []\n"
    body += "kept = copy.deepcopy(net.state_dict())\n" if draw_round.restores else ""
    body += draw_round.some(0, 0, 1, 2)
    in_loop = draw_round.some(2, 3, 4, 5)
    if "optimizer.step()" not in in_loop:
        in_loop += "optimizer.step()\n"
    body += f"for step in range({random.choice([1, 2, 3])}):\n{indent(in_loop, '    ')}"
    body += draw_round.some(0, 0, 1)
    also = ", 'aux': values(aux.state_dict())" if beside else ""
    body += f"return {{**values(net.state_dict()), 'seen': seen{also}}}\n"
    codes = "\n\n".join(work.code for work in works)
    return (
        f'"""{door}, seed {seed}."""\n{HEADER}\n\n{DOORS[door]}\n\n{codes}\n\n'
        f"def run(n_jobs):\n    torch.manual_seed(0)\n{indent(body, '    ')}"
    )


# -- what workers do -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A function for workers, and what the parent does with `outs`, the results of its tasks."""

    name: str
    code: str
    after: str


_SEEN = "seen += map(seen_of, outs)\n"
_BACKWARD = "loss = loss_of(net, x, y)\nloss.backward()\n"


def _work(random: Random, number: int, door: str) -> Work:
    kind, writes = random.choice(
        [
            (_norm, False),
            (_norm, False),
            (_loss, False),
            (_gradients, False),
            (_gradients, False),
            (_some_gradients, False),
            (_asked_for, False),
            (_predicted, False),
            (_state, True),
            (_trained, True),
            (_trained_here, True),
        ]
    )
    name, code = f"work_{number}", ""
    if (writes and door in _SENT_AS_SHARED) or random.random() < 0.15:
        code += "net = copy.deepcopy(net)\n"
    if random.random() < 0.2:
        code += "net.eval()\n"
    rest, after = kind(random)
    return Work(name, f"def {name}(net, x, y):\n{indent(code + rest, '    ')}", after)


def _cleared(random: Random) -> str:
    cleared = ["", *["net.zero_grad()\n"] * 2, "net.zero_grad(set_to_none=False)\n"]
    return random.choice(cleared) + _BACKWARD


def _left(random: Random) -> str:
    return random.choice(["", "", "net.zero_grad()\n"])


def _norm(random: Random) -> tuple[str, str]:
    code = _cleared(random) + "size = sum(p.grad.norm() for p in net.parameters()).item()\n"
    slower = "optimizer.param_groups[0]['lr'] *= 0.5 if sum(outs) > 1.0 else 1.0\n"
    return f"{code}{_left(random)}return size\n", random.choice([_SEEN, _SEEN, slower])


def _loss(random: Random) -> tuple[str, str]:
    return f"{_cleared(random)}{_left(random)}return loss.detach()\n", _SEEN


def _gradients(random: Random) -> tuple[str, str]:
    code = _cleared(random) + "grads = [p.grad.clone() for p in net.parameters()]\n"
    return f"{code}{_left(random)}return grads\n", _taken(random)


def _some_gradients(random: Random) -> tuple[str, str]:
    code = _cleared(random) + "grads = [p.grad.clone() for p in net.head.parameters()]\n"
    taken = "for p, *gs in zip(net.head.parameters(), *outs):\n    p.grad = sum(gs)\n"
    return f"{code}{_left(random)}return grads\n", taken


def _asked_for(random: Random) -> tuple[str, str]:
    code = "return torch.autograd.grad(loss_of(net, x, y), list(net.parameters()))\n"
    return code, _taken(random)


def _predicted(random: Random) -> tuple[str, str]:
    return "with torch.no_grad():\n    return net(x).sum()\n", _SEEN


def _state(random: Random) -> tuple[str, str]:
    code = _cleared(random) + (
        "with torch.no_grad():\n    for p in net.parameters():\n        p -= 0.1 * p.grad\n"
    )
    taken = "net.load_state_dict({k: sum(o[k] for o in outs) / len(outs) for k in outs[0]})\n"
    return (
        f"{code}{_left(random)}return {{k: v.clone() for k, v in net.state_dict().items()}}\n",
        taken,
    )


def _trained(random: Random) -> tuple[str, str]:
    code = _cleared(random) + "torch.optim.SGD(net.parameters(), lr=0.2).step()\nreturn net\n"
    taken = random.choice(
        [
            "net.load_state_dict(outs[0].state_dict())\n",
            "net = outs[0]\n",
            "net = outs[-1]\noptimizer = torch.optim.SGD(net.parameters(), lr=0.3)\n",
            "best = min(outs, key=lambda one: float(loss_of(one, X[0], Y[0])))\n"
            "seen.append(seen_of(loss_of(best, X[1], Y[1])))\n",
        ]
    )
    return code, taken


def _trained_here(random: Random) -> tuple[str, str]:
    code = "own = torch.optim.SGD(net.parameters(), lr=0.2)\n" + _cleared(random) + "own.step()\n"
    return code + random.choice(["", "own.zero_grad()\n"]) + "return loss.item()\n", _SEEN


def _taken(random: Random) -> str:
    return random.choice(
        [
            "for p, *gs in zip(net.parameters(), *outs):\n    p.grad = sum(gs) / len(gs)\n",
            "for p, *gs in zip(net.parameters(), *outs):\n"
            "    p.grad = sum(gs) if p.grad is None else p.grad + sum(gs)\n",
            "with torch.no_grad():\n    for p, *gs in zip(net.parameters(), *outs):\n"
            "        p -= 0.1 * sum(gs)\n",
            "for p, *gs in zip(net.parameters(), *outs):\n"
            "    if p.grad is None:\n        p.grad = torch.zeros_like(p)\n"
            "    p.grad.copy_(sum(gs))\n",
            "seen += [seen_of(g) for gs in outs for g in gs]\n",
        ]
    )


# -- what the parent does ------------------------------------------------------------------------

_CLEARS = (
    *["optimizer.zero_grad()\n"] * 2,
    "optimizer.zero_grad(set_to_none=False)\n",
    "net.zero_grad()\n",
    "for p in net.parameters():\n    p.grad = None\n",
    "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.zero_()\n",
)
_COMPUTES = (
    *["loss_of(net, X[0], Y[0]).backward()\n"] * 2,
    "loss_of(net, X[1], Y[1]).backward()\nloss_of(net, X[2], Y[2]).backward()\n",
    "(0.1 * sum((p**2).sum() for p in net.parameters())).backward()\n",
    "net.head(torch.ones(2, 4)).sum().backward()\n",
    "grads = torch.autograd.grad(loss_of(net, X[0], Y[0]), list(net.parameters()))\n"
    "for p, g in zip(net.parameters(), grads):\n    p.grad = g\n",
)
_CHANGES = (
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n",
    "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)\n",
    "for p in net.parameters():\n    if p.grad is not None:\n        p.grad = p.grad * 2\n",
    "with torch.no_grad():\n    for p in net.parameters():\n        p.mul_(0.99)\n",
    "net.eval()\n",
    "net.train()\n",
)
_BESIDE = (
    "other.zero_grad()\nloss_of(aux, X[0], Y[0]).backward()\nother.step()\n",
    "((aux(X[0]) - net(X[0])) ** 2).mean().backward()\n",
    "((aux(X[0]) - net(X[0]).detach()) ** 2).mean().backward()\nother.step()\nother.zero_grad()\n",
    "other.step()\n",
    "other.zero_grad()\n",
)


@dataclass(frozen=True)
class Rounds:
    """Draws what the parent does, one after the other.

    Attributes:
        beside: it has another network and optimizer.
        restores: it has kept an old state.
    """

    random: Random
    works: list[Work]
    beside: bool
    restores: bool

    def some(self, *counts: int) -> str:
        """As many things as one of `counts`."""
        return "".join(self._one() for _ in range(self.random.choice(counts)))

    def _one(self) -> str:
        if self.beside and self.random.random() < 0.3:
            return self.random.choice(_BESIDE)
        kinds: list[Callable[[], str]] = [
            self._hands_out,
            lambda: self.random.choice(_CLEARS),
            lambda: self.random.choice(_COMPUTES),
            lambda: "optimizer.step()\n",
            lambda: self.random.choice(_CHANGES),
            self._looks,
        ]
        return self.random.choices(kinds, [6, 5, 5, 5, 2, 1])[0]()

    def _hands_out(self) -> str:
        work = self.random.choice(self.works)
        given = self.random.choice([*["net"] * 3, "copy.deepcopy(net)"])
        tasks = f"[({given}, x, y) for x, y in zip(X, Y)]"
        return f"outs = spread(n_jobs, {work.name}, {tasks})\n{work.after}"

    def _looks(self) -> str:
        if self.restores:
            return "net.load_state_dict(kept)\n"
        return "seen.append(seen_of(loss_of(net, X[0], Y[0])))\n"
