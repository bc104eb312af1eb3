"""What the tests send to workers."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass
class Record:
    value: Any
    more: Any = None


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def scaled(self, k: float) -> Any:
        return self.value * k

    def __call__(self, k: float) -> Any:
        return self.value.exp() * k


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(torch.tanh(self.norm(self.body(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.other = nn.Linear(3, 3, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: Any) -> Any:
        assert self.one.weight is self.other.weight
        return self.other(torch.sin(self.one(x)))


class Keeps(nn.Module):
    """Rebinds a buffer, and one of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("graph", None)

    def forward(self, x: Any) -> Any:
        self.mean = 0.5 * self.mean + x.detach()
        self.seen = torch.cat([self.seen, x.detach()])
        return (self.w * x).sum()


def polynomial(t: Any, k: float) -> Any:
    return t.sin() * t + k * t**2


def containers(a: Any, b: Any, k: float = 1.0) -> Any:
    x, (y,), z = a["x"], a["y"], a["z"].value
    u, v = b
    total = (x * y).sum() * k + (z * u).sum() + v.more["deep"][0].sum()
    return OrderedDict(
        total=total,
        pair=Pair(x * k, [y + 1, None]),
        record=Record(z * 2, (3, "word")),
        count=torch.arange(3),
        array=np.arange(4.0),
    )


def forward(net: Any, x: Any) -> Any:
    return net(x)


def seeded(net: Any, x: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return net(x)


def same_mask(t: Any) -> Any:
    return torch.dropout(t, 0.5, True) * float(np.random.rand() + 1)


def derivative(net: Any, x: Any) -> Any:
    """A residual, as a physics-informed network has it."""
    x.requires_grad_(True)
    u = net(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    return ((du - u) ** 2).mean()


def several(t: Any, k: int) -> Any:
    return {"a": t * k, "unused": t.exp(), "detached": t.detach() * 2, "index": t.argmax()}


def identity(t: Any, k: int) -> Any:
    return t if k else t * 2


def expanded(t: Any, scale: Any) -> Any:
    return (t * scale).sum().expand(1)


def views(t: Any) -> Any:
    return t.view(-1)[1:]


def in_place(t: Any, k: int) -> Any:
    t *= k
    return t.sum()


def scratch(t: Any, buffer: Any) -> Any:
    buffer += 1
    return (t * buffer).sum()


def fails(t: Any, k: int) -> Any:
    if k == 1:
        raise KeyError("task of the user's")
    return t * k


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        return t * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise ArithmeticError("backward of the user's")


def fails_backward(t: Any) -> Any:
    return FailsBackward.apply(t)


class Reverses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


def reverses(t: Any) -> Any:
    return Reverses.apply(t)


weight = torch.full((2,), 2.0, requires_grad=True)


def reads_global(t: Any) -> Any:
    return t * weight


def reads_global_values(t: Any) -> Any:
    with torch.no_grad():
        scale = weight * 2
    return t * scale


def nested(t: Any, k: int) -> Any:
    from pytest_gradguard.parallel import Parallel, delayed

    out = Parallel(n_jobs=2)(delayed(polynomial)(t, k + j) for j in range(2))
    return sum(out)


def modes(t: Any) -> Any:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_default_dtype(),
        "ones": torch.ones(2),
        "product": t @ t,
        "requires": (t * 2).requires_grad,
    }


def large(array: Any, t: Any) -> Any:
    return isinstance(array, np.memmap), t * float(array[3])


def guesses(t: Any) -> Any:
    return t * (1 + random.Random().randrange(1 << 20))


def trains(net: Any, x: Any) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(x).pow(2).mean().backward()
    optimizer.step()
    return net


def leaves_gradients(t: Any, k: float) -> None:
    (t**2 * k).sum().backward()


def leaves_after_clearing(t: Any, k: float) -> None:
    t.grad = None
    leaves_gradients(t, k)


# What a second run has to repeat


def times(w: Any, given: Any) -> Any:
    """With a copy of an array, wherever it is."""
    array = given["x"][0] if isinstance(given, dict) else given
    return w * torch.from_numpy(np.array(array))


def times_alias(w: Any, given: Any) -> Any:
    return w * torch.from_numpy(given)


def shuffled(w: Any, x: Any) -> Any:
    return x[random.Random().sample(range(len(x)), len(x))] @ w


def masked(w: Any) -> Any:
    mask = np.zeros(len(w), "float32")
    mask[random.Random().sample(range(len(w)), len(w) // 2)] = 1
    return w * torch.from_numpy(mask)


def unseeded_mask(w: Any, draw: Any) -> Any:
    mask = torch.tensor([float(draw() > 0.5) for _ in w])
    return (w * mask).sum(), mask


def numpy_draw() -> float:
    return float(np.random.default_rng().random())


def system_draw() -> float:
    return random.SystemRandom().random()


def in_order_of(w: Any, names: Any) -> Any:
    return torch.stack([w[name] for name in names])


def timed(w: Any) -> Any:
    return (w * 2).sum(), time.time()


def with_generators(w: Any, one: Any, other: Any) -> Any:
    return w * torch.randn(3, generator=one) * float(other.normal())


# Tensors that no argument holds

net = nn.Linear(3, 1)


class Registered:
    nets = (net,)

    def __call__(self, x: Any) -> Any:
        return self.chosen(x)

    @property
    def chosen(self) -> Any:
        return net

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return cls.nets[0](x)


def imports_inside(x: Any) -> Any:
    from tasks import net as hidden

    return hidden(x)


def by_its_name(x: Any) -> Any:
    return globals()["n" + "et"](x)


@functools.lru_cache
def _cached() -> Any:
    return nn.Linear(3, 1)


def from_a_cache(x: Any) -> Any:
    return _cached()(x)


def replaces(module: Any, x: Any) -> Any:
    module.weight = nn.Parameter(torch.ones(1, 3))
    return module(x)


class Cycle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.owners = [self]

    def forward(self, x: Any) -> Any:
        return x * self.w


def model_of_its_own(x: Any) -> Any:
    return Cycle()(x) * torch.ones(3, requires_grad=True)


class Points:
    """Keeps points that it differentiates by, as physics-informed losses do."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)
        nn.init.ones_(self.net.weight)
        nn.init.ones_(self.net.bias)

    def loss(self, count: int) -> Any:
        self.points = torch.linspace(0, 1, count).reshape(-1, 1).requires_grad_()
        u = self.net(self.points).sin()
        (du,) = torch.autograd.grad(u.sum(), self.points, create_graph=True)
        return (du - u).pow(2).mean()


def makes_and_returns(x: Any) -> Any:
    made = nn.Linear(3, 1)
    return made, made(x).sum()


def product(a: Any, b: Any) -> Any:
    return (a @ b).pow(2).sum()


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(3).to_sparse())
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return torch.sparse.mm(self.edges, self.layer(x))


def half(module: Any, x: Any) -> Any:
    return module(x).float().sum()


def enables(w: Any) -> Any:
    frozen = w * 5
    with torch.enable_grad():
        return (w * 2 * frozen).sum()


def hidden_and_loss(w: Any, retain: bool) -> Any:
    hidden = w * 2
    if retain:
        hidden.retain_grad()
    return hidden, hidden.exp().sum()
