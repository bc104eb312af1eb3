"""Tasks that run in worker processes, which import them by name."""

from __future__ import annotations

from typing import Any

import torch


def loss_of(model: Any, value: float) -> Any:
    return model(torch.full((1, 2), value)).sum()


def returns_nothing(model: Any, value: float) -> None:
    loss_of(model, value).backward()


def returns_the_norm(model: Any, value: float) -> float:
    model.zero_grad()
    loss_of(model, value).backward()
    return float(sum(parameter.grad.norm() for parameter in model.parameters()))


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


def error_of_a_shard(model: Any, rows: Any, wanted: Any) -> Any:
    return torch.nn.functional.mse_loss(model(rows), wanted)


def losses_and_scores(model: Any, rows: Any) -> dict[str, Any]:
    scores = model(rows)
    return {"loss": scores.square().mean(), "best": int(scores.argmax())}


def embeds(tables: Any, index: int) -> Any:
    return tables["words"][index].tanh()


def fits(model: Any, rows: Any, epochs: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters())
    history = []
    for _ in range(epochs):
        optimizer.zero_grad(set_to_none=False)
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        history.append(float(loss))
    return history


def norm_of_the_gradient(tables: Any, index: int) -> float:
    tables["words"][index].square().sum().backward()
    return float(tables["words"].grad.norm())


class Replica:
    """A model and its rows, as an object with a method that trains."""

    def __init__(self, model: Any, rows: Any) -> None:
        self.model = model
        self.rows = rows

    def accumulate(self) -> int:
        for row in self.rows:
            self.model(row).sum().backward()
        return len(self.rows)
