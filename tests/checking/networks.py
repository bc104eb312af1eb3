"""Random networks with right gradients, and three ways to spoil the gradient of a parameter.

Run as a program, it checks many of them: ``python tests/checking/networks.py 500 float32``.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pytest_gradguard import GradGuardError, check_gradients

FAULTS: dict[str, Callable[[Any], Any]] = {
    "one per cent": lambda gradient: gradient * 1.01,
    "detached": lambda gradient: gradient * 0,
    "sign": lambda gradient: -gradient,
}


class Attention(nn.Module):
    """Self-attention with a residual path and a layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(x + attended)


class Words(nn.Module):
    """Embedded words, attention, and an output layer that may be tied to the embedding."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        width = draw.choice((4, 8))
        self.embedding = nn.Embedding(11, width, padding_idx=draw.choice((None, 0)))
        self.blocks = nn.Sequential(
            *(Attention(width, 2, draw.choice((0.0, 0.2))) for _ in range(draw.choice((1, 2))))
        )
        self.activation = activation(draw)
        self.head = nn.Linear(width, 11, bias=draw.random() < 0.5)
        if draw.random() < 0.5:
            self.head.weight = self.embedding.weight

    def forward(self, words: Any) -> Any:
        return self.head(self.activation(self.blocks(self.embedding(words)))).mean(1)


def activation(draw: random.Random) -> nn.Module:
    kinds = (nn.ReLU, nn.Tanh, nn.GELU, nn.LeakyReLU, nn.ELU, nn.Hardtanh, nn.SiLU)
    return draw.choice(kinds)()


def dense(draw: random.Random) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = 6
    for _ in range(draw.randint(1, 4)):
        after = draw.choice((5, 8, 16))
        layers.append(nn.Linear(width, after, bias=draw.random() < 0.8))
        layers.append(draw.choice((nn.LayerNorm, nn.BatchNorm1d, nn.Identity))(after))
        layers.append(activation(draw))
        layers.append(nn.Dropout(draw.choice((0.0, 0.3))))
        width = after
    return nn.Sequential(*layers, nn.Linear(width, 3))


def convolutional(draw: random.Random) -> nn.Sequential:
    channels = draw.choice((2, 4))
    pool = draw.choice((nn.MaxPool2d, nn.AvgPool2d))
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        draw.choice((nn.BatchNorm2d(channels), nn.GroupNorm(2, channels), nn.Identity())),
        activation(draw),
        pool(2),
        nn.Conv2d(channels, 4, 3),
        activation(draw),
        draw.choice((nn.AdaptiveMaxPool2d(1), nn.AdaptiveAvgPool2d(1))),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


class Recurrent(nn.Module):
    """A recurrent layer, whose last state is classified."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.layer = draw.choice((nn.LSTM, nn.GRU, nn.RNN))(3, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        states, _ = self.layer(x)
        return self.head(states[:, -1])


def problem(seed: int) -> tuple[nn.Module, Callable[[], Any]]:
    """A network, and a closure that computes its loss."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind = draw.choice(("words", "dense", "dense", "convolutional", "recurrent"))
    count = draw.choice((2, 8, 16))
    if kind == "words":
        network: nn.Module = Words(draw)
        x, classes = torch.randint(0, 11, (count, 5)), 11
    elif kind == "dense":
        network, x, classes = dense(draw), torch.randn(count, 6), 3
    elif kind == "convolutional":
        network, x, classes = convolutional(draw), torch.randn(count, 1, 8, 8), 3
    else:
        network, x, classes = Recurrent(draw), torch.randn(count, 4, 3), 3
    if draw.random() < 0.3:  # as many start: with biases of zero
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
    if draw.random() < 0.2:
        network.eval()
    labels = torch.randint(0, classes, (count,))
    goal = torch.randn(count, classes)
    losses: tuple[Callable[[Any], Any], ...] = (
        lambda out: nn.functional.cross_entropy(out, labels),
        lambda out: nn.functional.mse_loss(out, goal),
        lambda out: nn.functional.l1_loss(out, goal),
        lambda out: nn.functional.smooth_l1_loss(out, goal),
        lambda out: out.logsumexp(1).sum(),
    )
    loss = draw.choice(losses)
    return network, lambda: loss(network(x))


def gradients(network: nn.Module, closure: Callable[[], Any]) -> dict[str, float]:
    """How long the gradient of each parameter is."""
    named = dict(network.named_parameters())
    found = torch.autograd.grad(closure(), list(named.values()), allow_unused=True)
    return {
        name: 0.0 if one is None else float(one.norm())
        for name, one in zip(named, found, strict=True)
    }


@contextmanager
def spoiled(parameter: Any, fault: str) -> Iterator[None]:
    """A block in which the gradient of `parameter` is not what it should be."""
    handle = parameter.register_hook(FAULTS[fault])
    try:
        yield
    finally:
        handle.remove()


def target(network: nn.Module, closure: Callable[[], Any], seed: int) -> str:
    """A parameter whose gradient matters: no shorter than a hundredth of the longest."""
    lengths = gradients(network, closure)
    longest = max(lengths.values())
    return random.Random(seed).choice([one for one in lengths if lengths[one] > longest / 100])


def named_by(network: nn.Module, closure: Callable[[], Any]) -> set[str]:
    """The parameters that the check calls wrong."""
    try:
        check_gradients(closure, network)
    except GradGuardError as error:
        return set(error.findings[0].details["objects"])
    return set()


def main(count: int, dtype: str) -> None:
    """Check networks, and print what was wrong with the check."""
    from pytest_gradguard.checking import torch_state

    if dtype != "float64":
        torch_state.State.may_cast = lambda self: False  # type: ignore[method-assign]
    false, missed, other = [], dict.fromkeys(FAULTS, 0), dict.fromkeys(FAULTS, 0)
    start = time.perf_counter()
    for seed in range(count):
        network, closure = problem(seed)
        if named_by(network, closure):
            false.append(seed)
        name = target(network, closure, seed)
        for fault in FAULTS:
            with spoiled(dict(network.named_parameters())[name], fault):
                found = named_by(network, closure)
            missed[fault] += name not in found
            other[fault] += bool(found - {name})
            if name not in found and dtype == "float64":
                print(seed, fault, name, found)
    seconds = time.perf_counter() - start
    print(f"{count} networks in {dtype}, {seconds:.0f} s; right ones called wrong: {false}")
    print(f"faults not found: {missed}; other parameters named: {other}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
