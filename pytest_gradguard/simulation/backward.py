"""Backwards: what the autograd engine makes in C++ is tagged as it is made.

While the engine runs, the mode is on (for the hooks and functions of the program that it calls),
and a dispatch mode sees each operation of the engine's own.
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

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.simulation import mode, tags
from pytest_gradguard.simulation.mode import Simulation, local, outside


class _Roots(threading.local):
    device: torch.device | None = None
    running = False


_roots = _Roots()


class Engine(TorchDispatchMode):  # type: ignore[misc]
    """Tags what operations give that no function of torch's in Python has called."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would be imported, and asked, for each operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
            if local.depth:
                return result  # the mode that sees functions tags it
            tensors = tags.tensors_in(args) + tags.tensors_in(kwargs.values())
            place = None if tensors else _roots.device
            for tensor in tensors:
                place = tags.device_of(tensor)
                if place is not None:
                    break
            if place is not None:
                self._simulation.tag(result, place)
        return result


def _place_roots(simulation: Simulation, outputs: Any, gradients: Any) -> torch.device | None:
    """Let the gradients that a backward begins with lie where its outputs do."""
    first = None
    if isinstance(outputs, torch.Tensor):
        outputs, gradients = (outputs,), (gradients,)
    for output, gradient in itertools.zip_longest(outputs, gradients):
        if isinstance(output, torch.Tensor):
            place = tags.device_of(output)
            if place is not None:
                first = first or place
                if isinstance(gradient, torch.Tensor):
                    tags.put_if_bare(gradient, place, simulation.machine.memory)
    return first


def watched_hooks(original: Callable[..., Any]) -> Callable[..., Any]:
    """The program's hooks for saved tensors are called inside of torch's functions."""

    def seen(hook: Any, packs: bool) -> Any:
        @functools.wraps(hook)
        def call(value: Any) -> Any:
            simulation = mode.current
            if simulation is None:
                return hook(value)
            if packs:
                simulation.tag_saved(value)
            with outside(simulation):
                return hook(value)

        return call

    @functools.wraps(original)
    def __init__(self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        original(self, seen(pack_hook, True), seen(unpack_hook, False))

    return __init__


def starting(original: Callable[..., None]) -> Callable[..., None]:
    """``torch.autograd.backward``, which starts autograd's threads, or is refused in a fork."""

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if mode.current is not None:
            mode.current.machine.start_autograd()
        original(*args, **kwargs)

    return backward


def listener(backward: torch_engine.Backward) -> torch_engine.End | None:
    """Have the simulation on in a backward pass."""
    simulation = mode.current
    if simulation is None:
        return None
    in_force = ExitStack()
    in_force.enter_context(_during(simulation, backward))
    return lambda *_: in_force.close()


@contextmanager
def _during(simulation: Simulation, backward: torch_engine.Backward) -> Iterator[None]:
    before = (_roots.device, _roots.running)
    with torch._C.DisableTorchFunction():
        _roots.device = _place_roots(simulation, backward.outputs, backward.gradients)
    _roots.running = True
    try:
        with outside(simulation), nullcontext() if before[1] else Engine(simulation):
            yield
    finally:
        _roots.device, _roots.running = before
