"""Backwards: what the autograd engine makes in C++ is tagged as it is made.

While the engine runs, the mode is on (for the hooks and functions of the program that it calls),
and a dispatch mode sees each operation of the engine's own.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_gradguard.runtime.patching import Patch
from pytest_gradguard.simulation import tags
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


def patches(current: Callable[[], Simulation | None]) -> list[Patch]:
    """What sees each backward; `current` tells the simulation that is on."""
    wrap = functools.partial(_watched, current)
    return [
        Patch(torch.autograd, "_engine_run_backward", wrap),
        Patch(torch.autograd.graph, "_engine_run_backward", wrap),
        Patch(
            torch.autograd.graph.saved_tensors_hooks,
            "__init__",
            functools.partial(_watched_hooks, current),
        ),
    ]


def _watched_hooks(
    current: Callable[[], Simulation | None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """The program's hooks for saved tensors are called inside of torch's functions."""

    def seen(hook: Any, packs: bool) -> Any:
        @functools.wraps(hook)
        def call(value: Any) -> Any:
            simulation = current()
            if simulation is None or not simulation.active:
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


def _watched(
    current: Callable[[], Simulation | None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        simulation = current()
        if simulation is None or not simulation.active:
            return original(t_outputs, *args, **kwargs)
        before = (_roots.device, _roots.running)
        with torch._C.DisableTorchFunction():
            _roots.device = _place_roots(simulation, t_outputs, args[0] if args else ())
        _roots.running = True
        try:
            with outside(simulation):
                if before[1]:
                    return original(t_outputs, *args, **kwargs)
                with Engine(simulation):
                    return original(t_outputs, *args, **kwargs)
        finally:
            _roots.device, _roots.running = before

    return _engine_run_backward
