"""What only a real GPU can do, refused with one message; and what is left out here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from pytest_gradguard import imports
from pytest_gradguard.simulation import tags
from pytest_gradguard.simulation.errors import ANOTHER_LIBRARY, CannotSimulate, refusing
from pytest_gradguard.simulation.mode import Simulation
from pytest_gradguard.simulation.replacing import Replacements

_EXTENSIONS = "torch.utils.cpp_extension"
_TRITON = "triton.runtime.jit"
_EXPORT = "torch.export"
_MARKS = SimpleNamespace(
    rangePushA=lambda message: 0,
    rangePop=lambda: 0,
    rangeStartA=lambda message: 0,
    rangeEnd=lambda number: None,
    markA=lambda message: None,
)
"""Marks for a profiler that is not there."""


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Put the refusals in place, some of them once the program imports what they are for."""
    replaced.put(torch.cuda.CUDAGraph, "__new__", refusing("CUDA graphs"))
    replaced.put(torch, "compile", _compile)
    replaced.put(torch.cuda.nvtx, "_nvtx", _MARKS)

    def refuse(owner: Any, name: str, wanted: Callable[..., bool], what: str) -> None:
        replaced.put(owner, name, _unless(wanted, what, getattr(owner, name)))

    def nested(values: Any, *_: Any, device: Any = None, **__: Any) -> bool:
        return _on_gpu((values,)) or simulation.machine.meant(device) is not None

    for name in ("nested_tensor", "as_nested_tensor"):
        refuse(torch.nested, name, nested, "nested tensors on a GPU")
    for owner in (torch, torch._C, torch.utils.dlpack):
        name = "_to_dlpack" if owner is torch._C else "to_dlpack"
        if hasattr(owner, name):
            refuse(owner, name, lambda tensor: _on_gpu((tensor,)), ANOTHER_LIBRARY)
    profile = torch.autograd.profiler.profile
    replaced.put(profile, "__init__", _without_gpu(profile.__init__))
    _run_compiled_as_written(True)
    if torch.distributed.is_available():
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            refuse(module, "init_process_group", _by_nccl, "NCCL process groups")

    def extensions() -> None:
        module: Any = sys.modules[_EXTENSIONS]
        replaced.put(module, "CUDAExtension", refusing("custom CUDA kernels"))
        for name in ("load", "load_inline"):
            refuse(module, name, _with_kernels, "custom CUDA kernels")

    def triton() -> None:
        function: Any = getattr(sys.modules[_TRITON], "JITFunction", None)
        if function is not None:
            replaced.put(function, "run", refusing("Triton kernels"))

    def export() -> None:
        what = "torch.export of a program on a GPU"
        refuse(sys.modules[_EXPORT], "export", _exported_from_gpu, what)

    for name, callback in ((_EXTENSIONS, extensions), (_TRITON, triton), (_EXPORT, export)):
        if name in sys.modules:
            callback()
        else:
            imports.call_after(name, callback)
            _waiting.append(callback)


_waiting: list[Callable[[], None]] = []


def undo() -> None:
    """Wait for nothing any more."""
    _run_compiled_as_written(False)
    while _waiting:
        imports.forget(_waiting.pop())


def _unless(
    wanted: Callable[..., bool], what: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """`original`, where its arguments do not say that a real GPU is `wanted`, for `what`."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if wanted(*args, **kwargs):
            raise CannotSimulate(what)
        return original(*args, **kwargs)

    return function


def _on_gpu(values: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return any(tags.device_of(tensor) is not None for tensor in tags.tensors_in(values))


def _by_nccl(backend: Any = None, *_: Any, **__: Any) -> bool:
    return backend is not None and "nccl" in str(backend).lower()


def _exported_from_gpu(mod: Any, args: Any = (), *_: Any, **__: Any) -> bool:
    return _on_gpu([*args, *mod.parameters(), *mod.buffers()])


def _with_kernels(name: Any, sources: Any = (), *_: Any, **options: Any) -> bool:
    """Whether what `load` and `load_inline` are to compile has CUDA in it."""
    sources = [sources] if isinstance(sources, str) else sources
    named = any(str(source).endswith((".cu", ".cuh")) for source in sources)
    return named or bool(options.get("with_cuda") or options.get("cuda_sources"))


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
