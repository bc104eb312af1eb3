"""The fast paths of attention and transformers, which torch takes where it sees no mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.simulation.mode import Simulation, is_entered
from pytest_gradguard.simulation.replacing import Replacements


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Let `torch.nn` overlook the simulation when it asks whether tensors are plain ones.

    It asks `torch.overrides` itself; other modules of torch's keep the function under their own
    names, and go on seeing the simulation.
    """
    original: Callable[..., bool] = torch.overrides.has_torch_function

    def has_torch_function(relevant_args: Any) -> bool:
        if torch._C._len_torch_function_stack() != 1 or not is_entered(simulation):
            return original(relevant_args)
        with torch._C.DisableTorchFunction():
            return any(
                isinstance(value, torch.Tensor)
                and type(value) not in (torch.Tensor, torch.nn.Parameter)
                for value in relevant_args
            )

    replaced.put(torch.overrides, "has_torch_function", has_torch_function)
