"""A stand-in for a GPU that torch initialises: torch's own code, on a build without CUDA.

It says of itself that CUDA is up, and that it has reserved memory of one GPU. Nothing can be
computed there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

RESERVED = 32 << 20


def _come_up() -> None:
    if os.environ.get("NVML_SAYS") == "no CUDA":
        raise RuntimeError("no CUDA")
    torch.cuda._initialized = True


def _stats(device: int) -> dict[str, Any]:
    return {"reserved_bytes": {"all": {"current": RESERVED if device == 0 else 0}}}


def _allocator() -> str:
    return "cudaMallocAsync" if os.environ.get("NVML_SAYS") == "another allocator" else "native"


torch.cuda._lazy_init = _come_up
_c: Any = torch._C
_c._cuda_getDeviceCount = lambda: 2
_c._cuda_memoryStats = _stats
_c._cuda_getAllocatorBackend = _allocator


def start(said: str, room: str, workers: int) -> int:
    """Initialise CUDA in this worker, once so many others are there for tasks of their own."""
    os.environ["NVML_SAYS"] = said
    if said == "another package":
        import pycuda  # noqa: F401
    Path(room, str(os.getpid())).touch()
    until = time.monotonic() + 60
    while len(list(Path(room).iterdir())) < workers and time.monotonic() < until:
        time.sleep(0.01)
    try:
        torch.cuda.init()
    except RuntimeError:
        pass
    return os.getpid()


def nothing(said: str, room: str, workers: int) -> int:
    return os.getpid()
