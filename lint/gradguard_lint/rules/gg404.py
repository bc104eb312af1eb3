"""A Python loop takes the gradient of one example at a time."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import Tensor
from gradguard_lint.rules.base import Examples, Report

CODE = "GG404"


def check(program: Program) -> Iterator[Report]:
    for effect in (*program.effects, *program.loops):
        if effect.kind != "gradient-collected":
            continue
        yield Report(
            effect.place or effect.site,
            "This loop collects gradients one example at a time: the result is right, but one "
            "vectorised call is far faster.",
            (Step(effect.site, "the gradients of one example are collected here"),),
            case=_framework(effect),
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
