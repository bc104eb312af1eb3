"""Gradients through accelerate, Lightning Fabric, and workers that were started before."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_gradguard import GradGuardError, check_gradients

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    scale = 1.0

    def closure() -> Any:
        loss = prepared(X).pow(2).mean()
        accelerator.backward(scale * loss)
        return loss

    check_gradients(closure, prepared)
    scale = 0.5
    with pytest.raises(GradGuardError) as failed:
        check_gradients(closure, prepared)
    assert "Each of them is 0.5 times that derivative." in failed.value.findings[0].message


def test_fabric() -> None:
    lightning = pytest.importorskip("lightning.fabric")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model = network()
    module, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    detached = False

    def closure() -> Any:
        hidden = module(X)
        loss = (hidden.detach() * hidden if detached else hidden.pow(2)).mean()
        fabric.backward(loss)
        return loss

    check_gradients(closure, module)
    detached = True
    with pytest.raises(GradGuardError):
        check_gradients(closure, module)


def serve(model: Any, connection: Any) -> None:
    """Answer with the loss and the gradients, as the shared parameters are by then."""
    while connection.recv():
        loss = model(X.to(next(model.parameters()).dtype)).pow(2).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        connection.send((float(loss), [one.tolist() for one in gradients]))


@contextmanager
def served(factor: float) -> Iterator[tuple[Any, Any]]:
    model = network().share_memory()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(model, there), daemon=True)
    process.start()

    def closure() -> float:
        here.send(True)
        loss, gradients = here.recv()
        for parameter, one in zip(model.parameters(), gradients, strict=True):
            parameter.grad = factor * torch.tensor(one, dtype=parameter.dtype)
        return float(loss)

    yield closure, model
    here.send(False)
    process.join()


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_worker_that_was_started_before_reads_shared_parameters() -> None:
    torch.set_num_threads(1)
    with served(1.0) as (closure, model):
        assert check_gradients(closure, model).precision == "float32"
    with served(2.0) as (closure, model), pytest.raises(GradGuardError):
        check_gradients(closure, model)
