"""Records where torch starts the CUDA driver in this process without initialising CUDA.

``torch.cuda.is_available()`` starts it, and so does the first backward pass, even on the CPU, if a
GPU is visible: autograd starts a thread for each GPU. CUDA and autograd are unusable in any process
forked afterwards; the finding there names the line recorded here.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.cuda import attempts

_COUNT = "_cuda_getDeviceCount"


def apply() -> None:
    """Watch for a driver start, if torch was built with CUDA; simulated GPUs report it."""
    if not (_patches.applied or simulated_devices.pretended()):
        _patches.apply()
        if _patches.applied:
            torch_engine.subscribe(_backward)


def _make() -> list[Patch]:
    core: Any = sys.modules.get("torch._C")
    if not hasattr(core, _COUNT) or "torch.autograd" not in sys.modules:
        return []
    return [observe(core, _COUNT, before=_asked)]


_patches = LatePatches(_make)


def _asked() -> None:
    attempts.started("question")


def _backward(_: torch_engine.Backward) -> None:
    torch_engine.unsubscribe(_backward)
    attempts.started("backward")
