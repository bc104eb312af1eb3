"""Which objects carry gradients; one module a framework, used once the program has imported it."""

from __future__ import annotations

import sys


def watch_reductions() -> None:
    """Make the tensors of every framework that is loaded report to the active crossing."""
    if "torch.nn.parameter" in sys.modules:
        from pytest_gradguard.runtime.frameworks import torch

        torch.reductions.apply()


def undo() -> None:
    """Undo `watch_reductions`."""
    torch = sys.modules.get("pytest_gradguard.runtime.frameworks.torch")
    if torch is not None:
        torch.reductions.undo()


def loaded() -> bool:
    """Whether the program has imported a framework with gradients."""
    return "torch.nn.parameter" in sys.modules
