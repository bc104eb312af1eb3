"""Activate and deactivate the simulation in this process, once torch is imported.

What only a real GPU can do is refused with one message, or left out where results do not change.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from multiprocessing import spawn
from types import SimpleNamespace
from typing import Any

import torch

from pytest_gradguard import imports
from pytest_gradguard.runtime.frameworks.torch import engine
from pytest_gradguard.runtime.frameworks.torch.following import take_off
from pytest_gradguard.runtime.kernel.lineage import in_child
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.pitfalls.cuda import attempts
from pytest_gradguard.simulation import (
    backward,
    driver,
    mode,
    moves,
    numerics,
    operators,
)
from pytest_gradguard.simulation.machine import ANOTHER_LIBRARY, CannotSimulate, Machine, refusing
from pytest_gradguard.simulation.mode import Simulation, inside_torch, local, user_code
from pytest_gradguard.simulation.placement import device_of, tensors_in
from pytest_gradguard.simulation.replacements import Replacements

_replaced = Replacements()
_machine: Machine | None = None
"""This process's machine; a worker that simulates again keeps its state."""


def activate(devices: int, for_spawned: Any, *, again: bool = False) -> None:
    """Simulate `devices` GPUs.

    Args:
        devices: the number of GPUs.
        for_spawned: starts the simulation in a spawned process that unpickles it.
        again: keep the state that the machine of this process had.

    Raises:
        RuntimeError: this process uses a real GPU already, or torch is too old.
    """
    global _machine
    if mode.current is not None:
        machine = mode.current.machine
        if machine.devices != devices:
            machine.resize(devices)
            torch.cuda._cached_device_count = None
            if torch.cuda._initialized:
                torch.cuda.default_generators = numerics.default_generators(machine)
        return
    if not hasattr(torch, "get_autocast_dtype"):
        raise RuntimeError(f"simulated GPUs need torch 2.4 or later; this is {torch.__version__}")
    if torch.cuda.is_initialized():
        raise RuntimeError("this process already uses a real GPU, so none can be simulated in it")
    if _machine is None or _machine.devices != devices or not again:
        _machine = Machine(devices)
    simulation = Simulation(_machine)
    try:
        for part in (driver, numerics, moves, backward, operators):
            part.install(simulation, _replaced)
        _install_refusals(simulation)
        _install_boundaries(for_spawned)
        _patches.apply()
        engine.subscribe(backward.listener, engine.Order.COMPUTES, lasting=True)
    except BaseException:
        _undo()
        raise
    mode.current = simulation
    simulation.__enter__()


def deactivate() -> None:
    """Restore torch."""
    simulation, mode.current = mode.current, None
    if simulation is None:
        return
    default = torch.utils._device.CURRENT_DEVICE
    if default is not None and default.type == "cuda":
        torch.set_default_device(None)
    attempts.state.starts.clear()
    simulation.active = False
    take_off(simulation)
    _undo()


def _undo() -> None:
    engine.unsubscribe(backward.listener)
    _patches.undo()
    _force_eager(False)
    while _on_import:
        imports.forget(_on_import.pop())
    _replaced.undo()


def _after_fork() -> None:
    if mode.current is not None:
        machine = mode.current.machine
        machine.after_fork()
        if machine.in_bad_fork:
            torch.cuda._cached_device_count = None


in_child(_after_fork)


# -- where code of torch and of the program meet -------------------------------------------------


def _install_boundaries(for_spawned: Any) -> None:
    def rebuild_tensor(original: Any, *args: Any, **kwargs: Any) -> Any:
        with inside_torch():  # threads that started before the simulation unpickle tensors, too
            return original(*args, **kwargs)

    def default_device(
        original: Any, self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if local.depth:  # inside torch's functions, the default is the CPU
            return func(*args, **(kwargs or {}))
        return original(self, func, types, args, kwargs)

    def preparation_data(original: Any, name: str) -> dict[str, Any]:
        return {
            "gradguard_simulation": for_spawned,
            **original(name),
        }  # read before the main module

    _replaced.wrap(torch._utils, "_rebuild_tensor", rebuild_tensor)
    _replaced.wrap(torch.utils._device.DeviceContext, "__torch_function__", default_device)
    _replaced.wrap(spawn, "get_preparation_data", preparation_data)


def _in_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    """Modes belong to threads: each new thread enters this one."""

    @functools.wraps(original)
    def _bootstrap_inner(self: Any) -> Any:
        simulation = mode.current
        if simulation is None:
            return original(self)
        with user_code(simulation):
            return original(self)

    return _bootstrap_inner


_patches = Patches(
    [
        Patch(torch.autograd.graph.saved_tensors_hooks, "__init__", backward.watch_hooks),
        Patch(torch.autograd, "backward", backward.start_autograd),
        Patch(threading.Thread, "_bootstrap_inner", _in_thread),
    ],
    lasting=True,
)


# -- what only a real GPU can do -----------------------------------------------------------------

_EXTENSIONS = "torch.utils.cpp_extension"
_TRITON = "triton.runtime.jit"
_EXPORT = "torch.export"
_PROFILER_MARKS = SimpleNamespace(
    rangePushA=lambda message: 0,
    rangePop=lambda: 0,
    rangeStartA=lambda message: 0,
    rangeEnd=lambda number: None,
    markA=lambda message: None,
)

_on_import: list[Callable[[], None]] = []
"""Refusals for modules that are not imported yet."""


def _install_refusals(simulation: Simulation) -> None:
    _replaced.put(torch.cuda.CUDAGraph, __new__=refusing("CUDA graphs"))
    _replaced.put(torch, compile=_compile)
    _replaced.put(torch.cuda.nvtx, _nvtx=_PROFILER_MARKS)
    _replaced.wrap(torch.autograd.profiler.profile, "__init__", _profile_cpu)
    _force_eager(True)

    def is_nested_on_gpu(values: Any, *_: Any, device: Any = None, **__: Any) -> bool:
        return _on_gpu((values,)) or simulation.machine.resolve(device) is not None

    for name in ("nested_tensor", "as_nested_tensor"):
        _refuse(torch.nested, name, is_nested_on_gpu, "nested tensors on a GPU")
    for owner in (torch, torch._C, torch.utils.dlpack):
        name = "_to_dlpack" if owner is torch._C else "to_dlpack"
        if hasattr(owner, name):
            _refuse(owner, name, lambda tensor: _on_gpu((tensor,)), ANOTHER_LIBRARY)
    if torch.distributed.is_available():
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            _refuse(module, "init_process_group", _is_nccl, "NCCL process groups")

    def extensions() -> None:
        module: Any = sys.modules[_EXTENSIONS]
        _replaced.put(module, CUDAExtension=refusing("custom CUDA kernels"))
        for name in ("load", "load_inline"):
            _refuse(module, name, _has_kernels, "custom CUDA kernels")

    def triton() -> None:
        function: Any = getattr(sys.modules[_TRITON], "JITFunction", None)
        if function is not None:
            _replaced.put(function, run=refusing("Triton kernels"))

    def export() -> None:
        what = "torch.export of a program on a GPU"
        _refuse(sys.modules[_EXPORT], "export", _is_on_gpu, what)

    for name, callback in ((_EXTENSIONS, extensions), (_TRITON, triton), (_EXPORT, export)):
        if name in sys.modules:
            callback()
        else:
            imports.call_after(name, callback)
            _on_import.append(callback)


def _refuse(owner: Any, name: str, needs_gpu: Callable[..., bool], what: str) -> None:
    """Refuse calls of ``owner.name`` with arguments that need a real GPU."""

    def function(original: Any, *args: Any, **kwargs: Any) -> Any:
        if needs_gpu(*args, **kwargs):
            raise CannotSimulate(what)
        return original(*args, **kwargs)

    _replaced.wrap(owner, name, function)


def _on_gpu(values: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return any(device_of(tensor) is not None for tensor in tensors_in(values))


def _is_nccl(backend: Any = None, *_: Any, **__: Any) -> bool:
    return backend is not None and "nccl" in str(backend).lower()


def _is_on_gpu(mod: Any, args: Any = (), *_: Any, **__: Any) -> bool:
    return _on_gpu([*args, *mod.parameters(), *mod.buffers()])


def _has_kernels(name: Any, sources: Any = (), *_: Any, **options: Any) -> bool:
    """Whether `load` or `load_inline` is to compile CUDA code."""
    sources = [sources] if isinstance(sources, str) else sources
    named = any(str(source).endswith((".cu", ".cuh")) for source in sources)
    return named or bool(options.get("with_cuda") or options.get("cuda_sources"))


def _compile(model: Any = None, **_: Any) -> Any:
    """`torch.compile` leaves its function as it is."""
    return (lambda function: function) if model is None else model


_stance: list[Any] = []


def _force_eager(on: bool) -> None:
    """Run functions compiled before as written; their kernels know no simulated GPU."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if on and hasattr(frames, "_set_stance"):
        _stance.append(frames._set_stance(frames.DynamoStance("force_eager")))
    elif not on and _stance:
        frames._set_stance(_stance.pop())


def _profile_cpu(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Profile the CPU alone."""
    if kwargs.get("use_device") == "cuda":
        kwargs["use_device"] = None
    kwargs.pop("use_cuda", None)
    original(self, *args, **kwargs)
