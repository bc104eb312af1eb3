"""What only a real GPU can do, refused with one message; and what is left out here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.simulation import devices, tags, waiting
from pytest_gradguard.simulation.errors import CannotSimulate
from pytest_gradguard.simulation.machine import Machine
from pytest_gradguard.simulation.mode import Simulation
from pytest_gradguard.simulation.replacing import Replacements

_EXTENSIONS = "torch.utils.cpp_extension"
_TRITON = "triton.runtime.jit"
_EXPORT = "torch.export"


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Put the refusals in place, some of them once the program imports what they are for."""
    replaced.put(torch.cuda.CUDAGraph, "__new__", _refuse("CUDA graphs"))
    replaced.put(torch, "compile", _compile)
    replaced.put(torch.cuda.nvtx, "_nvtx", _Marks())
    for name in ("nested_tensor", "as_nested_tensor"):
        original = getattr(torch.nested, name)
        replaced.put(torch.nested, name, _without_nesting(simulation.machine, original))
    for owner in (torch, torch._C, torch.utils.dlpack):
        name = "_to_dlpack" if owner is torch._C else "to_dlpack"
        if hasattr(owner, name):
            replaced.put(owner, name, _at_home(getattr(owner, name)))
    profile = torch.autograd.profiler.profile
    replaced.put(profile, "__init__", _without_gpu(profile.__init__))
    _run_compiled_as_written(True)
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

    def export() -> None:
        module: Any = sys.modules[_EXPORT]
        replaced.put(module, "export", _without_gpus(module.export))

    for name, callback in ((_EXTENSIONS, extensions), (_TRITON, triton), (_EXPORT, export)):
        if name in sys.modules:
            callback()
        else:
            waiting.call_after(name, callback)
            _waiting.append(callback)


_waiting: list[Callable[[], None]] = []


def undo() -> None:
    """Wait for nothing any more."""
    _run_compiled_as_written(False)
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


def _without_nesting(machine: Machine, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def nested(values: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            given = tags.tensors_in((values,))
            on_gpu = any(tags.device_of(tensor) is not None for tensor in given)
        if on_gpu or devices.meant(kwargs.get("device"), machine) is not None:
            raise CannotSimulate("nested tensors on a GPU")
        return original(values, *args, **kwargs)

    return nested


def _at_home(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to_dlpack(tensor: Any) -> Any:
        if tags.device_of(tensor) is not None:
            raise CannotSimulate("handing a GPU tensor to another library")
        return original(tensor)

    return to_dlpack


def _refuse(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotSimulate(what)

    return refuse


def _compile(model: Any = None, **_: Any) -> Any:
    """`torch.compile` makes kernels for the GPU: here, what it is given runs as it is."""
    if model is None:
        return lambda function: function
    return model


_stance: list[Any] = []


def _run_compiled_as_written(on: bool) -> None:
    """What was compiled before runs as it was written, too: its kernels know no simulated GPU."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if on and hasattr(frames, "_set_stance"):
        _stance.append(frames._set_stance(frames.DynamoStance("force_eager")))
    elif not on and _stance:
        frames._set_stance(_stance.pop())


def _without_gpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """A profiler that watches the CPU alone, where all of it happens."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == "cuda":
            kwargs["use_device"] = None
        kwargs.pop("use_cuda", None)
        original(self, *args, **kwargs)

    return __init__


def _without_nccl(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is not None and "nccl" in str(backend).lower():
            raise CannotSimulate("NCCL process groups")
        return original(backend, *args, **kwargs)

    return init_process_group


def _without_gpus(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def export(mod: Any, args: Any = (), *others: Any, **kwargs: Any) -> Any:
        tensors = [*tags.tensors_in(args), *mod.parameters(), *mod.buffers()]
        with torch._C.DisableTorchFunction():
            if any(tags.device_of(tensor) is not None for tensor in tensors):
                raise CannotSimulate("torch.export of a program on a GPU")
        return original(mod, args, *others, **kwargs)

    return export


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
