"""Puts the simulation in place in this process, and takes it away; torch has been imported."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from multiprocessing import spawn
from typing import Any

import torch

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch.following import take_off
from pytest_gradguard.runtime.kernel.lineage import in_child
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.pitfalls.cuda import attempts
from pytest_gradguard.simulation import (
    attention,
    backward,
    driver,
    foreach,
    legacy,
    mode,
    randomness,
    scripting,
    several,
    sharing,
    storages,
    streams,
    unsupported,
)
from pytest_gradguard.simulation import indexing as indexing
from pytest_gradguard.simulation import kinds as kinds
from pytest_gradguard.simulation import reading as reading
from pytest_gradguard.simulation.machine import Machine
from pytest_gradguard.simulation.mode import Simulation, inside, local, outside
from pytest_gradguard.simulation.replacing import Replacements

_replaced = Replacements()
_machine: Machine | None = None
"""The machine of this process: a worker that simulates GPUs again has read what it has read."""


def on(devices: int, staying: Any, *, again: bool = False) -> None:
    """Simulate so many GPUs from now on.

    Args:
        devices: how many.
        staying: unpickled in a process that is spawned, it simulates the same there.
        again: with what this process knew of them when the simulation was on here before.

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
                torch.cuda.default_generators = randomness.default_generators(machine)
        return
    if not hasattr(torch, "get_autocast_dtype"):
        raise RuntimeError(f"simulated GPUs need torch 2.4 or later; this is {torch.__version__}")
    if torch.cuda.is_initialized():
        raise RuntimeError("this process already uses a real GPU, so none can be simulated in it")
    if _machine is None or _machine.devices != devices or not again:
        _machine = Machine(devices)
    simulation = Simulation(_machine)
    try:
        _put_in_place(simulation, staying)
    except BaseException:
        _undo()
        raise
    mode.current = simulation
    simulation.__enter__()


def _put_in_place(simulation: Simulation, staying: Any) -> None:
    machine = simulation.machine
    driver.install(machine, _replaced)
    streams.install(machine, _replaced)
    randomness.install(machine, _replaced)
    storages.install(simulation, _replaced)
    scripting.install(simulation, _replaced)
    sharing.install(simulation, _replaced)
    several.install(_replaced)
    legacy.install(_replaced)
    attention.install(simulation, _replaced)
    foreach.install(_replaced)
    unsupported.install(simulation, _replaced)
    _replaced.put(torch._utils, "_rebuild_tensor", _inside(torch._utils._rebuild_tensor))
    prepared = _prepared(spawn.get_preparation_data, staying)
    _replaced.put(spawn, "get_preparation_data", prepared)
    context = torch.utils._device.DeviceContext
    _replaced.put(context, "__torch_function__", _above(context.__torch_function__))
    _patches.apply()
    torch_engine.subscribe(backward.listener, torch_engine.Order.COMPUTES)


def _undo() -> None:
    torch_engine.unsubscribe(backward.listener)
    _patches.undo()
    unsupported.undo()
    _replaced.undo()


def off() -> None:
    """Leave torch as it was."""
    simulation, mode.current = mode.current, None
    if simulation is None:
        return
    chosen = torch.utils._device.CURRENT_DEVICE
    if chosen is not None and chosen.type == "cuda":
        torch.set_default_device(None)  # there is none any more
    attempts.starts.clear()
    simulation.active = False
    take_off(simulation)
    _undo()


def _above(original: Callable[..., Any]) -> Callable[..., Any]:
    """A default device is for the program: inside of torch's functions, it is the CPU."""

    @functools.wraps(original)
    def __torch_function__(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if local.depth:
            return func(*args, **(kwargs or {}))
        return original(self, func, types, args, kwargs)

    return __torch_function__


def _inside(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors are unpickled in threads, too, that are older than the simulation."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        with inside():
            return original(*args, **kwargs)

    return function


def _prepared(original: Callable[..., Any], staying: Any) -> Callable[..., Any]:
    """A process that is spawned now simulates the same, before it imports the main module."""

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {"gradguard_simulation": staying, **original(name)}

    return get_preparation_data


def _in_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    """Modes belong to threads: each thread that starts now gets this one."""

    @functools.wraps(original)
    def _bootstrap_inner(self: Any) -> Any:
        simulation = mode.current
        if simulation is None:
            return original(self)
        with outside(simulation):
            return original(self)

    return _bootstrap_inner


_patches = Patches(
    [
        Patch(torch.autograd.graph.saved_tensors_hooks, "__init__", backward.watched_hooks),
        Patch(torch.autograd, "backward", backward.starting),
        Patch(threading.Thread, "_bootstrap_inner", _in_thread),
    ],
    lasting=True,
)


def _forked() -> None:
    if mode.current is not None:
        machine = mode.current.machine
        machine.forked()
        if machine.in_bad_fork:
            torch.cuda._cached_device_count = None


in_child(_forked)
