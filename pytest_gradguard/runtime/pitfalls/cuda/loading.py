"""Detects `torch.load` mapping data to a GPU where there is none.

Where there is a GPU, torch initialises CUDA for it (see `torch`). Otherwise it raises before it
tries, in the one function through which every way of loading validates the device.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.cuda import attempts

_NAMES = ("_validate_device", "validate_cuda_device")
"""The validating function, in newer and in older versions of torch; the newer one calls it."""


def _make() -> list[Patch]:
    serialization: Any = sys.modules.get("torch.serialization")
    name = next((name for name in _NAMES if hasattr(serialization, name)), None)
    return [] if name is None else [observe(serialization, name, failed=_refused)]


_patches = LatePatches(_make)
apply = _patches.apply
"""Record attempts from now on, if torch is loaded."""


def _refused(error: BaseException, location: Any, backend_name: str = "cuda") -> None:
    if backend_name == "cuda" and _needs_a_gpu():
        attempts.note("torch", error)


def _needs_a_gpu() -> bool:
    """Whether it failed for lack of any GPU, in a process that might use one."""
    torch: Any = sys.modules.get("torch.cuda")
    try:
        return torch is not None and not torch.is_available() and not attempts.lost_by_fork(torch)
    except Exception as error:
        fault(error)
        return False
