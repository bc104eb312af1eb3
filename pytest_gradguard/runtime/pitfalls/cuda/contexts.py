"""What the CUDA contexts of this process take of the GPUs' memory.

It is what the driver says that the process holds, less what the frameworks have reserved for their
tensors. Where one of them does not say, or where that may not be all, nothing is known. Memory that
is used on the GPU before and after is no measure: several workers start at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.runtime.pitfalls.cuda import attempts, nvml
from pytest_gradguard.runtime.pitfalls.cuda.nvml import Unknown

_MOST = 2 << 30
"""More than a context and its kernels ever take: there is memory of somebody else's in it."""
_OTHERS = ("jaxlib", "numba.cuda.cudadrv", "onnxruntime", "paddle", "pycuda", "rmm", "tensorrt")
"""Packages that take GPU memory for themselves, where loaded; how much, nobody asks them."""
_measured_in: list[int] = [0]


def measured() -> int | None:
    """The bytes that the contexts of this process take; None: not known, or asked before.

    It touches no framework that has not initialised CUDA, and nothing where GPUs are simulated.
    """
    process = os.getpid()
    if _measured_in[0] == process:
        return None
    _measured_in[0] = process
    if not HERE.measures_gpus or simulated_devices.pretended():
        return None
    if "tensorflow" in attempts.up or any(name in sys.modules for name in _OTHERS):
        return None
    try:
        before = _reserved()
        used = nvml.used_here()
        if _reserved() != before:
            return None
    except Unknown:
        return None
    taken = used - before
    return taken if 0 < taken <= _MOST else None


def _reserved() -> int:
    """What torch and CuPy hold of GPU memory for tensors and arrays, used or not."""
    return _reserved_by_torch() + _reserved_by_cupy()


def _reserved_by_torch() -> int:
    torch: Any = sys.modules.get("torch.cuda")
    if torch is None or not torch.is_initialized():
        return 0
    if torch.memory.get_allocator_backend() != "native":
        raise Unknown
    devices = sys.modules["torch"]._C._cuda_getDeviceCount()  # the variable may have changed since
    return sum(torch.memory.memory_reserved(device) for device in range(devices))


def _reserved_by_cupy() -> int:
    cupy: Any = sys.modules.get("cupy")
    if cupy is None:
        return 0
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        raise Unknown
    if "cupy" in attempts.up and cupy.cuda.runtime.getDeviceCount() != 1:
        raise Unknown  # it tells of the current GPU only
    return int(pool.total_bytes())
