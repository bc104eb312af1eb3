"""Two ranks of Lightning or accelerate train by the wrapped module, and then past it: HOST."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_gradguard import GradGuardError, check_gradients

STEPS = 12


def network() -> nn.Sequential:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(8 * STEPS, 4)), 4)


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()


def check(
    forward: Any, backward: Callable[[Any], object], model: Any, rank: int, passes: int = 1
) -> None:
    """Say whether the gradients are right; each backward is one of so many `passes` of a step."""
    batch = torch.randn(4, 4, generator=torch.Generator().manual_seed(rank))

    def closure() -> Any:
        loss = loss_of(forward, batch)
        backward(loss)
        return loss / passes

    try:
        check_gradients(closure, model)
        said = "right"
    except GradGuardError:
        said = "wrong"
    print(f"gradients: {said}", flush=True)


def train_by_fabric(fabric: Any) -> None:
    for past in (False, True):
        model = network()
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), 0.01))
        forward = model.module if past else model
        check(forward, fabric.backward, model, fabric.global_rank)
        for (batch,) in fabric.setup_dataloaders(data()):
            optimizer.zero_grad()
            fabric.backward(loss_of(forward, batch))
            optimizer.step()


def fabric() -> None:
    from lightning.fabric import Fabric

    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(train_by_fabric)


def train_by_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    for past in (False, True):
        model = network()
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.05), data()
        )
        forward = accelerator.unwrap_model(model) if past else model
        check(forward, accelerator.backward, model, accelerator.process_index, passes=2)
        for (batch,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(forward, batch))
                optimizer.step()
                optimizer.zero_grad()


def train_unprepared(prepares: bool = False) -> None:
    """Train with an optimizer that accelerate does not know, and steps after each micro-batch."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if prepares:
        optimizer = accelerator.prepare(optimizer)
    for (batch,) in accelerator.prepare(data()):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()


def unprepared(prepares: bool = False) -> None:
    from accelerate import debug_launcher

    debug_launcher(train_unprepared, (prepares,), num_processes=2)


def unprepared_repaired() -> None:
    unprepared(prepares=True)


def accelerate() -> None:
    from accelerate import debug_launcher

    debug_launcher(train_by_accelerate, num_processes=2)


if "trainer" in sys.argv:
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()
            self.norm = nn.BatchNorm1d(4)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return loss_of(self.layers, self.norm(batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)


def trainer() -> None:
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
    options |= {"enable_progress_bar": False, "enable_model_summary": False}
    options |= {"accelerator": "cpu", "devices": 2, "strategy": "ddp_spawn"}
    lightning.Trainer(max_epochs=2, accumulate_grad_batches=2, **options).fit(Net(), data())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    hosts = {"fabric": fabric, "accelerate": accelerate, "trainer": trainer}
    hosts |= {"unprepared": unprepared, "unprepared_repaired": unprepared_repaired}
    hosts[sys.argv[1]]()
