"""What only a real GPU can do, refused with one message; and what goes another way here."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.simulation.errors import CannotSimulate
from pytest_gradguard.simulation.mode import Simulation
from pytest_gradguard.simulation.replacing import Replacements


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Put the refusals in place."""
    core: Any = torch._C
    replaced.put(core._CUDAGraph, "__new__", _refuse("CUDA graphs"))
    replaced.put(torch, "compile", _compile)


def _refuse(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotSimulate(what)

    return refuse


def _compile(model: Any = None, **_: Any) -> Any:
    """`torch.compile`, which makes kernels for the GPU: the program runs as it is."""
    if model is None:
        return lambda function: function
    return model
