"""A cached function returns a tensor with history: from the second run on, it is severed."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, Step
from gradguard_lint.rules.base import Examples, Report

CODE = "GG108"


def check(program: Program) -> Iterator[Report]:
    for effect in program.library_uses("cached graph"):
        made = effect.payload.place
        yield Report(
            made or effect.site,
            f"`{effect.what}` is cached by joblib and returns a tensor with autograd history: "
            "a call that hits the cache returns it without its graph.",
            (Step(effect.site, "the cached function returns such a tensor for this call"),)
            if made is not None and effect.site.node is not made.node
            else (),
        )


BAD: Examples = {
    "decorated": """\
import torch
from joblib import Memory

memory = Memory("cache", verbose=0)
net = torch.nn.Linear(3, 2)


@memory.cache
def embed(batch):  # GG108
    return net(batch)


out = embed(torch.ones(2, 3))
out.sum().backward()
""",
    "wrapped by hand": """\
import torch
from joblib import Memory


def scaled(weights, k):  # GG108
    return weights * k


weights = torch.ones(3, requires_grad=True)
cached = Memory("cache").cache(scaled)
cached(weights, 2).sum().backward()
""",
}

GOOD: Examples = {
    "detached": """\
import torch
from joblib import Memory

memory = Memory("cache", verbose=0)
net = torch.nn.Linear(3, 2)


@memory.cache
def embed(batch):
    with torch.no_grad():
        return net(batch)


out = embed(torch.ones(2, 3))
""",
    "no cache at all": """\
import torch
from joblib import Memory

memory = Memory(location=None)
net = torch.nn.Linear(3, 2)


@memory.cache
def embed(batch):
    return net(batch)


embed(torch.ones(2, 3)).sum().backward()
""",
}
