"""Gradients, and other computations of torch in C++, where no function mode applies.

In a backward pass the mode is on, for the hooks and functions of the program that the autograd
engine calls, and a dispatch mode tags the results of the engine's own operations. Results of
TorchScript are tagged afterwards.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_gradguard.runtime.frameworks.torch import engine
from pytest_gradguard.simulation import mode, placement
from pytest_gradguard.simulation.mode import Simulation, handles, local, user_code
from pytest_gradguard.simulation.placement import device_of, device_or_cpu, tensors_in
from pytest_gradguard.simulation.replacements import Replacements

_tensor: Any = torch.Tensor


def on_device(simulation: Simulation, tensor: Any, device: torch.device | None) -> Any:
    """`tensor` on `device` (None: the CPU), copied if necessary."""
    if device_of(tensor) == device:
        return tensor
    copied = tensor.clone()
    placement.set_device(copied, device, simulation.machine.memory)
    return copied


def return_gradient(
    simulation: Simulation, node: Any, source: torch.device | None, position: int | None = None
) -> None:
    """Move the gradients that `node` returns to `source` (None: the CPU).

    Args:
        simulation: the active simulation.
        node: the node of a copy between devices.
        source: the device that was copied from.
        position: the index of the gradient to move; None: all.
    """

    def hook(gradients: Any, _: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return tuple(
                gradient
                if gradient is None or (position is not None and position != index)
                else on_device(simulation, gradient, source)
                for index, gradient in enumerate(gradients)
            )

    node.register_hook(hook)


# -- functions on gradients ----------------------------------------------------------------------


@handles(_tensor.grad.__get__, _tensor._grad.__get__)
def _get_grad(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    gradient = func(*args)
    if gradient is None:
        return None
    tensor = args[0]
    place = device_of(tensor)
    if place is not None and device_of(gradient) is None:
        simulation.tag(gradient, place)
        return gradient
    moved = on_device(simulation, gradient, place)
    if moved is not gradient:
        tensor.grad = moved
    return moved


@handles(_tensor.grad.__set__, _tensor._grad.__set__)
def _set_grad(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, gradient = args
    if isinstance(gradient, torch.Tensor):
        own, other = device_or_cpu(tensor), device_or_cpu(gradient)
        if own != other:
            kind, its, mine = "with device type", other.type, own.type
            if its == mine:
                kind, its, mine = "located on device with index", other.index, own.index
            raise RuntimeError(
                f"attempting to assign a gradient {kind} '{its}' to a tensor {kind} '{mine}'. "
                "Please ensure that the gradient and the tensor are on the same device"
            )
    return func(*args)


@handles(_tensor.backward)
def _backward(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The first gradient has to be on the device of its tensor."""
    gradient = args[1] if len(args) > 1 else kwargs.get("gradient")
    if isinstance(gradient, torch.Tensor):
        own, other = device_or_cpu(args[0]), device_or_cpu(gradient)
        if own != other:
            raise RuntimeError(
                f"invalid gradient at index 0 - expected device {own} but got {other}"
            )
    return func(*args, **kwargs)


@handles(torch.autograd.grad)
def _autograd_grad(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradients are on the devices of their inputs."""
    simulation.machine.start_autograd()
    gradients = func(*args, **kwargs)
    inputs = args[1] if len(args) > 1 else kwargs["inputs"]
    if isinstance(inputs, dict):
        inputs = inputs.values()
    elif not isinstance(inputs, (list, tuple)):
        inputs = [inputs]
    placed = [
        on_device(simulation, gradient, device_of(tensor))
        if isinstance(gradient, torch.Tensor) and isinstance(tensor, torch.Tensor)
        else gradient
        for tensor, gradient in zip(inputs, gradients, strict=False)
    ]
    return tuple(placed) if isinstance(gradients, tuple) else gradients


# -- the autograd engine -------------------------------------------------------------------------


class _Pass(threading.local):
    device: torch.device | None = None
    """The GPU that the backward pass of this thread starts on."""
    running = False


_pass = _Pass()


class _EngineMode(TorchDispatchMode):  # type: ignore[misc]
    """Tags the results of operations called from C++."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise each operation imports and queries dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
            if local.depth:
                return result  # the function mode tags it
            tensors = tensors_in(args) + tensors_in(kwargs.values())
            place = None if tensors else _pass.device
            for tensor in tensors:
                place = device_of(tensor)
                if place is not None:
                    break
            self._simulation.tag(result, place)
        return result


def listener(backward: engine.Backward) -> engine.End | None:
    """Activate the simulation for a backward pass."""
    if mode.current is None:
        return None
    stack = ExitStack()
    stack.enter_context(_in_engine(mode.current, backward))
    return lambda *_: stack.close()


@contextmanager
def _in_engine(simulation: Simulation, backward: engine.Backward) -> Iterator[None]:
    before = (_pass.device, _pass.running)
    with torch._C.DisableTorchFunction():
        _pass.device = _tag_roots(simulation, backward.outputs, backward.gradients)
    _pass.running = True
    try:
        with user_code(simulation), nullcontext() if before[1] else _EngineMode(simulation):
            yield
    finally:
        _pass.device, _pass.running = before


def _tag_roots(simulation: Simulation, outputs: Any, gradients: Any) -> torch.device | None:
    """Tag the first gradients; returns the device of the first output."""
    first = None
    if isinstance(outputs, torch.Tensor):
        outputs, gradients = (outputs,), (gradients,)
    for output, gradient in itertools.zip_longest(outputs, gradients):
        if isinstance(output, torch.Tensor):
            place = device_of(output)
            first = first or place
            if isinstance(gradient, torch.Tensor):
                simulation.tag(gradient, place)
    return first


def start_autograd(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``torch.autograd.backward``, which starts autograd's threads."""

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if mode.current is not None:
            mode.current.machine.start_autograd()
        original(*args, **kwargs)

    return backward


def watch_hooks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``saved_tensors_hooks.__init__``: torch calls these hooks inside its functions."""

    def seeing_gpus(hook: Any, packs: bool) -> Any:
        @functools.wraps(hook)
        def call(value: Any) -> Any:
            simulation = mode.current
            if simulation is None:
                return hook(value)
            if packs:
                simulation.tag_saved(value)
            with user_code(simulation):
                return hook(value)

        return call

    @functools.wraps(original)
    def __init__(self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        original(self, seeing_gpus(pack_hook, True), seeing_gpus(unpack_hook, False))

    return __init__


# -- TorchScript ---------------------------------------------------------------------------------


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Tag the results of scripted functions and modules; let `torch.jit.load` name a GPU."""

    def call(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            places = map(device_of, tensors_in(args) + tensors_in(kwargs.values()))
            place = next((place for place in places if place is not None), None)
        result = original(self, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            simulation.tag(result, place)
        return result

    def load(original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = simulation.machine.resolve(map_location)
        if place is None:
            return original(f, map_location, *args, **kwargs)
        return original(f, "cpu", *args, **kwargs).to(place)

    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        replaced.wrap(kind, "__call__", call)
    replaced.wrap(torch.jit, "load", load)
