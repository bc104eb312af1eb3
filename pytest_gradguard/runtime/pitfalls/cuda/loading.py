"""Sees `torch.load` put what it reads on a GPU where there is none.

Where there is one, torch initialises CUDA for it (see `torch`). Where there is none, it says so
before it tries, in the function that every way of loading asks whether its device is there.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.cuda import attempts

_NAMES = ("_validate_device", "validate_cuda_device")
"""What asks, in newer and in older versions of torch; the newer has the other call it."""


def _make() -> list[Patch]:
    serialization: Any = sys.modules.get("torch.serialization")
    name = next((name for name in _NAMES if hasattr(serialization, name)), None)
    return [] if name is None else [observe(serialization, name, failed=_refused)]


_patches = LatePatches(_make)
apply = _patches.apply
"""Begin to note attempts, where torch is loaded."""


def _refused(error: BaseException, location: Any, backend_name: str = "cuda") -> None:
    if backend_name == "cuda" and _needs_a_gpu():
        attempts.note("torch", error)


def _needs_a_gpu() -> bool:
    """Whether it failed for want of any GPU, in a process that might use one."""
    torch: Any = sys.modules.get("torch.cuda")
    try:
        return torch is not None and not torch.is_available() and not attempts.lost_by_fork(torch)
    except Exception as error:
        fault(error)
        return False
