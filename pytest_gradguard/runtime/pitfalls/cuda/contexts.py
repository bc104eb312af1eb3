"""Measures the GPU memory of this process's CUDA contexts.

It is the memory that the driver reports for the process, less what the frameworks have reserved
for their tensors; unknown if a framework does not report that, or others may hold memory.
Comparing the GPU's memory before and after would be wrong: several workers start at once.
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
"""More than a context and its kernels ever take: the figure includes other memory."""
_OTHERS = ("jaxlib", "numba.cuda.cudadrv", "onnxruntime", "paddle", "pycuda", "rmm", "tensorrt")
"""Loaded packages that take an unknown amount of GPU memory for themselves."""
_measured_in: list[int] = [0]


def measured() -> int | None:
    """The bytes that the contexts of this process take; None if unknown or measured before.

    It initialises no framework, and measures nothing if GPUs are simulated.
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
    context_bytes = used - before
    return context_bytes if 0 < context_bytes <= _MOST else None


def _reserved() -> int:
    """The GPU memory that torch and CuPy reserve for tensors and arrays."""
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
        raise Unknown  # `total_bytes` covers the current GPU only
    return int(pool.total_bytes())
