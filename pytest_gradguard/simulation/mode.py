"""Sees every function of torch's in a thread, and lets it run on the CPU.

A function that names a GPU gets the CPU in its place, and what it returns is tagged (see `tags`):
with the device that was named, else with the one that its tensors share. What torch's own Python
code does below such a function runs without the mode, on tensors that are all on the CPU.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

from pytest_gradguard.runtime.frameworks.torch.following import take_off
from pytest_gradguard.simulation import (
    autocast,
    extensions,
    mixing,
    randomness,
    tags,
)
from pytest_gradguard.simulation.machine import INITIALIZATION, Machine, driver_error

Handler = Callable[["Simulation", Any, tuple[Any, ...], dict[str, Any]], Any]

Answer = Callable[[torch.device, Any], Any]
"""What is said of a tensor on a GPU: of where it lies, and of the function that was called."""

HANDLERS: dict[Any, Handler] = {}
"""What is done for functions that need more than the ordinary; by function."""


class _Local(threading.local):
    depth = 0
    target: torch.device | None = None
    strays: frozenset[int] = frozenset()


local = _Local()
"""How deep this thread is inside functions of torch's: there, everything is on the CPU.

And the GPU on which the function works that runs now, with what of its memory is on the CPU.
"""


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register the handler of `functions`; None among them is passed over (another version)."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            if function is not None:
                HANDLERS[function] = handler
        return handler

    return register


def on_gpu(answer: Answer) -> Handler:
    """The handler of functions that tensors on a GPU answer otherwise than those on the CPU."""

    def handle(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
        place = tags.device_of(args[0])
        return func(*args, **kwargs) if place is None else answer(place, func)

    return handle


class Simulation(TorchFunctionMode):  # type: ignore[misc]
    """The mode of one simulation; one object for all threads."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.active = True
        self._methods: dict[Any, Any] = {}

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active or (_dispatch_modes() and _fakes(_FAKE) is not None):
            return func(*args, **kwargs)  # tensors without data know devices by themselves
        before = local.target, local.strays
        local.target = None
        local.depth += 1
        try:
            handler = HANDLERS.get(func)
            if handler is None and type(func) not in _BUILT_IN:
                func = self._meant(func)
                handler = HANDLERS.get(func)
            if handler is not None:
                return handler(self, func, args, kwargs)
            return self.ordinary(func, args, kwargs)
        finally:
            local.depth -= 1
            local.target, local.strays = before

    def _meant(self, func: Any) -> Any:
        """`func`, or the method of tensors in whose place the program has put it.

        torch looks methods up by their names when it tells a mode of them: where the program has
        replaced one, what it calls below is told as its own function.
        """
        known = self._methods.get(func)
        if known is None:
            known = func
            for name, value in vars(torch.Tensor).items():
                if value is func and _METHODS.get(name, func) is not func:
                    known = _METHODS[name]
            self._methods[func] = known
        return known

    def ordinary(self, func: Any, args: Any, kwargs: Any, mixed: bool = False) -> Any:
        """Run `func` where its arguments lie, or where they ask for.

        Args:
            mixed: its arguments may lie on several devices; the first tells.

        Raises:
            RuntimeError: its arguments lie on several devices.
        """
        named = False
        target: torch.device | None = None
        if kwargs:
            if kwargs.get("device") is not None:
                named = True
                target = self.machine.meant(kwargs["device"])
                if target is not None:
                    kwargs = {**kwargs, "device": "cpu"}
            if kwargs.get("pin_memory"):
                return self._pinned(func, args, {**kwargs, "pin_memory": False})
        for position, value in enumerate(args):
            if type(value) is torch.device and not named:
                named = True
                target = self.machine.meant(value)
                if target is not None:
                    args = (*args[:position], torch.device("cpu"), *args[position + 1 :])
        if not named and default_device.CURRENT_DEVICE is not None and _makes(func):
            target = self.machine.meant(default_device.CURRENT_DEVICE)
            if target is not None:
                named = True
                kwargs = {**kwargs, "device": "cpu"}
        if target is not None:
            self.prepare(target)
        tensors = tags.tensors_in(args)
        if kwargs:
            tensors += tags.tensors_in(kwargs.values())
        common: torch.device | None = None
        strays: list[Any] = []
        if tensors:
            try:
                common, strays = mixing.common(func, tensors, mixed or named)
            except RuntimeError:
                kinds = extensions.with_rules(tensors)
                if not kinds:
                    raise
                with outside(self):  # what it calls is seen again, and refused if it mixes devices
                    return extensions.by_rules(kinds, func, args, kwargs)
        if not named:
            target = common
            if common is not None and _makes(func) and func not in _FROM_VALUES:
                target = None  # a tensor in place of a number: the result lies where none was named
            if common is not None and self.machine.in_bad_fork:
                self._refuse_in_fork(func)
        if target is None:
            if not named and kwargs.get("generator") is not None:
                randomness.check(kwargs["generator"], None)
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            randomness.check(kwargs["generator"], target)
        on_cpu = frozenset(map(tags.key, strays))
        local.target, local.strays = target, on_cpu
        result = self.call(func, args, kwargs, target)
        if on_cpu:  # what shares their memory stays on the CPU
            for tensor in tags.tensors_in((result,)):
                if tags.key(tensor) not in on_cpu:
                    self.tag(tensor, target)
        else:
            self.tag(result, target)
        return result

    def tag_saved(self, tensor: Any) -> None:
        """Tag what the function that runs now keeps for its backward, before it has returned."""
        if local.target is not None and isinstance(tensor, torch.Tensor):
            with torch._C.DisableTorchFunction():
                if tags.key(tensor) not in local.strays:
                    tags.put_if_bare(tensor, local.target, self.machine.memory)

    def call(self, func: Any, args: Any, kwargs: Any, target: torch.device) -> Any:
        """Call `func`, which works on `target`, with the autocast and random numbers of GPUs."""
        name = extensions.made_by_program(func)
        if name is not None:
            return extensions.run_operator(
                name, func, args, kwargs, functools.partial(outside, self)
            )
        if randomness.draws(func, target):
            with randomness.stream(target):
                return autocast.call(func, args, kwargs)
        return autocast.call(func, args, kwargs)

    def tag(self, result: Any, device: torch.device | None) -> None:
        """Say of the tensors in `result` that lie nowhere yet that they lie on `device`."""
        if device is None:
            return
        if isinstance(result, torch.Tensor):
            tags.put_if_bare(result, device, self.machine.memory)
        elif isinstance(result, (list, tuple)):
            for value in result:
                self.tag(value, device)
        elif isinstance(result, dict):
            for value in result.values():
                self.tag(value, device)

    def prepare(self, device: torch.device) -> None:
        """Initialise CUDA, as the first use of a GPU does, and refuse one that is not there.

        Raises:
            RuntimeError: CUDA cannot be initialised here, or there is no such GPU.
        """
        # Through the attribute: the guard watches it there.
        with outside(self):
            torch.cuda._lazy_init()
        self.machine.check(device.index)

    def _pinned(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.machine.pin()
        result = self.ordinary(func, args, kwargs)
        vars(result.untyped_storage())[tags.PINNED] = True
        return result

    def _refuse_in_fork(self, func: Any) -> None:
        name = getattr(func, "__name__", "")
        if name not in mixing.NEEDS_NO_GPU:
            with outside(self):
                torch.cuda._lazy_init()
            raise driver_error(INITIALIZATION)


current: Simulation | None = None
"""The simulation that is on."""

_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_fakes: Any = torch._C._get_dispatch_mode
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE

_BUILT_IN = frozenset(
    {
        *(types.BuiltinFunctionType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.MethodWrapperType),
    }
)
_METHODS = {**vars(torch._C.TensorBase), **vars(torch.Tensor)}

_FROM_VALUES = frozenset(
    {
        *(torch.sparse_coo_tensor, torch.sparse_compressed_tensor, torch.sparse_csr_tensor),
        *(torch.sparse_csc_tensor, torch.sparse_bsr_tensor, torch.sparse_bsc_tensor),
        torch.nested.nested_tensor,
    }
)
"""Functions that make a tensor where the values lie that they are given."""


def _makes(func: Any) -> bool:
    """Whether `func` makes a tensor where a default device says."""
    return func in default_device._device_constructors()


@contextmanager
def outside(simulation: Simulation) -> Iterator[None]:
    """A block of the user's code below a function of torch's: there, the mode is on again."""
    depth, local.depth = local.depth, 0
    target, local.target = local.target, None
    try:
        if is_entered(simulation):
            yield
        else:
            with simulation:
                yield
    finally:
        local.depth, local.target = depth, target


@contextmanager
def inside() -> Iterator[None]:
    """A block in which everything is on the CPU, as inside of torch's functions."""
    local.depth += 1
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        local.depth -= 1


def is_entered(simulation: Simulation) -> bool:
    """Whether the mode is on in this thread, now."""
    return any(mode is simulation for mode in _modes())


def leave_ended() -> None:
    """Take modes off this thread's stack whose simulation another thread has ended."""
    for mode in _modes():
        if isinstance(mode, Simulation) and not mode.active:
            take_off(mode)


def _modes() -> list[Any]:
    depth = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(index) for index in range(depth)]
