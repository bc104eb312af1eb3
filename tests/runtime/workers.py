"""What the tests of the guard run in workers: importable there by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


def identity(item: Any) -> Any:
    return item


def total(tensor: torch.Tensor) -> float:
    return tensor.detach().sum().item()


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def double_detached(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor * 2).detach()


def own_graph(index: int) -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * index


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 3)).sum()


def train(model: torch.nn.Module) -> tuple[torch.nn.Module, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return model, loss.item()


def backward_of(model: torch.nn.Module) -> None:
    loss_of(model).backward()


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    loss_of(model).backward()
    return [parameter.grad for parameter in model.parameters()]


class Estimator:
    """Keeps its last loss, with its graph, as estimators do."""

    def __init__(self, weights: Any = None) -> None:
        self.weights = weights

    def fit(self) -> Estimator:
        self.loss_ = own_graph(2).sum()
        return self

    def score(self, index: int) -> int:
        return index


@dataclasses.dataclass
class Record:
    index: int
    loss: torch.Tensor


def record(index: int) -> Record:
    return Record(index, own_graph(index).sum())


def nested(tensor: torch.Tensor) -> list[float]:
    from joblib import Parallel, delayed

    parallel = Parallel(2, backend="loky")
    return parallel(delayed(total)(tensor * index) for index in range(2))


def drawn(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator))
    return float(generator.random() if hasattr(generator, "random") else generator.random_sample())
