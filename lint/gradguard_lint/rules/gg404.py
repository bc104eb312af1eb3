"""A Python loop takes the gradient of one example at a time."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import Site, Tensor
from gradguard_lint.rules.base import Examples, Report

CODE = "GG404"


def check(program: Program) -> Iterator[Report]:
    every = (*program.effects, *program.loops)
    taken = [effect for effect in every if effect.kind in ("backward", "tape-gradient")]
    for effect in every:
        loop = effect.place
        if effect.kind != "gradient-collected" or loop is None:
            continue
        if not any(_inside(loop, other) for other in taken):
            continue  # gradients that are there already
        yield Report(
            loop,
            "This loop collects gradients one example at a time: the result is right, but one "
            "vectorised call is far faster.",
            (Step(effect.site, "the gradients of one example are collected here"),),
            case=_framework(effect),
        )


def _inside(loop: Site, effect: Effect) -> bool:
    """Whether `effect` happens in a loop: there, or in what is called there."""
    return any(
        site.path == loop.path
        and loop.line <= site.line <= getattr(loop.node, "end_lineno", loop.line)
        for site in (effect.site, *(step.site for step in effect.chain))
    )


def _framework(effect: Effect) -> str:
    """Whose gradients are collected."""
    parts = (part for part in inner(effect.target, 2) if isinstance(part, Tensor))
    return next((part.framework for part in parts), "")


BAD: Examples = {
    "a tape for each example": """\
import tensorflow as tf

weights = tf.Variable([1.0, 2.0])


def gradient(row):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * row)
    return tape.gradient(loss, weights)


grads = []
for row in tf.ones((8, 2)):  # GG404
    grads.append(gradient(row))
""",
    "a backward for each example": """\
import torch

net = torch.nn.Linear(2, 1)
grads = []
for row in torch.ones(8, 2):  # GG404
    net.zero_grad()
    net(row).sum().backward()
    grads.append(net.weight.grad.clone())
""",
}

GOOD: Examples = {
    "gradients that are there": """\
import torch

net = torch.nn.Linear(2, 1)
net(torch.ones(8, 2)).mean().backward()
dense = []
for parameter in net.parameters():
    dense.append(parameter.grad)
""",
    "a training loop": """\
import torch

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for batch in torch.ones(8, 4, 2):
    optimizer.zero_grad()
    loss = net(batch).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
}
