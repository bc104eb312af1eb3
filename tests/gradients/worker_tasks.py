"""Tasks that run in worker processes, which import them by name."""

from __future__ import annotations

from typing import Any

import torch


def loss_of(model: Any, value: float) -> Any:
    return model(torch.full((1, 2), value)).sum()


def returns_nothing(model: Any, value: float) -> None:
    loss_of(model, value).backward()


def returns_the_loss(model: Any, value: float) -> float:
    loss = loss_of(model, value)
    loss.backward()
    return loss.item()


def returns_predictions(model: Any, value: float) -> Any:
    loss_of(model, value).backward()
    with torch.no_grad():
        return model(torch.ones(5, 2)).numpy()


def steps_its_own_optimizer(model: Any, value: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, value).backward()
    optimizer.step()


def returns_gradients(model: Any, value: float) -> Any:
    loss_of(model, value).backward()
    return [parameter.grad for parameter in model.parameters()]


def returns_gradients_in_numpy(model: Any, value: float) -> Any:
    loss_of(model, value).backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


def returns_gradients_in_one_vector(model: Any, value: float) -> Any:
    loss_of(model, value).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def returns_gradients_in_lists(model: Any, value: float) -> Any:
    loss_of(model, value).backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]


def returns_the_state(model: Any, value: float) -> Any:
    steps_its_own_optimizer(model, value)
    return model.state_dict()


def returns_the_model(model: Any, value: float) -> Any:
    steps_its_own_optimizer(model, value)
    return {"model": model, "value": value}


def only_evaluates(model: Any, value: float) -> float:
    with torch.no_grad():
        return float(loss_of(model, value))


def returns_its_graph(model: Any, value: float) -> Any:
    return loss_of(model, value)


def doubles(x: Any) -> Any:
    return x * 2


def sums_squares(weights: Any, rows: Any) -> Any:
    return (weights["w"] * rows).pow(2).sum()
