"""What a program means by a device: a string, a number, a `torch.device`."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.simulation.machine import Machine


def meant(device: Any, machine: Machine) -> torch.device | None:
    """The GPU that `device` names, with its number; None: it names none, or nothing.

    Raises:
        RuntimeError: it is a string that names no device.
    """
    if device is None:
        return None
    if not isinstance(device, torch.device):
        if isinstance(device, int) and not isinstance(device, bool):
            if device < 0:
                raise RuntimeError(f"Device index must not be negative, got {device}")
            return torch.device("cuda", device)
        if not isinstance(device, str):
            return None
        device = torch.device(device)
    if device.type != "cuda":
        return None
    if device.index is None:
        return torch.device("cuda", machine.current)
    return device


def of_cuda_call(device: Any, machine: Machine) -> torch.device:
    """The GPU that ``tensor.cuda(device)`` means.

    Raises:
        RuntimeError: it means another device than a GPU.
    """
    if device is None:
        return torch.device("cuda", machine.current)
    found = meant(device, machine)
    if found is None:
        raise RuntimeError("Invalid device, must be cuda device")
    return found
