"""What only a real GPU can do, refused with one message; and what is left out here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.simulation import waiting
from pytest_gradguard.simulation.errors import CannotSimulate
from pytest_gradguard.simulation.mode import Simulation
from pytest_gradguard.simulation.replacing import Replacements

_EXTENSIONS = "torch.utils.cpp_extension"
_TRITON = "triton.runtime.jit"


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Put the refusals in place, some of them once the program imports what they are for."""
    core: Any = torch._C
    replaced.put(core._CUDAGraph, "__new__", _refuse("CUDA graphs"))
    replaced.put(torch, "compile", _compile)
    replaced.put(torch.cuda.nvtx, "_nvtx", _Marks())
    if torch.distributed.is_available():
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            original = torch.distributed.distributed_c10d.init_process_group
            replaced.put(module, "init_process_group", _without_nccl(original))

    def extensions() -> None:
        module: Any = sys.modules[_EXTENSIONS]
        replaced.put(module, "CUDAExtension", _refuse("custom CUDA kernels"))
        for name in ("load", "load_inline"):
            replaced.put(module, name, _without_kernels(getattr(module, name)))

    def triton() -> None:
        function: Any = getattr(sys.modules[_TRITON], "JITFunction", None)
        if function is not None:
            replaced.put(function, "run", _refuse("Triton kernels"))

    for name, callback in ((_EXTENSIONS, extensions), (_TRITON, triton)):
        if name in sys.modules:
            callback()
        else:
            waiting.call_after(name, callback)
            _waiting.append(callback)


_waiting: list[Callable[[], None]] = []


def undo() -> None:
    """Wait for nothing any more."""
    while _waiting:
        waiting.forget(_waiting.pop())


class _Marks:
    """Marks for a profiler that is not there."""

    def rangePushA(self, message: str) -> int:
        return 0

    def rangePop(self) -> int:
        return 0

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, number: int) -> None:
        return None

    def markA(self, message: str) -> None:
        return None


def _refuse(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotSimulate(what)

    return refuse


def _compile(model: Any = None, **_: Any) -> Any:
    """`torch.compile` makes kernels for the GPU: here, what it is given runs as it is."""
    if model is None:
        return lambda function: function
    return model


def _without_nccl(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is not None and "nccl" in str(backend).lower():
            raise CannotSimulate("NCCL process groups")
        return original(backend, *args, **kwargs)

    return init_process_group


def _without_kernels(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(name: Any, *args: Any, **kwargs: Any) -> Any:
        sources = kwargs.get("sources", args[0] if args else ())
        sources = [sources] if isinstance(sources, str) else sources
        if (
            kwargs.get("with_cuda")
            or kwargs.get("cuda_sources")
            or any(str(source).endswith((".cu", ".cuh")) for source in sources)
        ):
            raise CannotSimulate("custom CUDA kernels")
        return original(name, *args, **kwargs)

    return load
