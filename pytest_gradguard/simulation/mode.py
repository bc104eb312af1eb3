"""The function mode that handles every function of torch in a thread and runs it on the CPU.

A device argument that names a GPU becomes the CPU, and the result is tagged with that GPU, or else
with the one that the tensors among the arguments share (`placement`). torch's own Python code
below such a function runs without the mode, on untagged CPU tensors.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

from pytest_gradguard.runtime.frameworks.torch.following import take_off
from pytest_gradguard.simulation import numerics, placement
from pytest_gradguard.simulation.machine import (
    INITIALIZATION,
    CannotSimulate,
    Machine,
    driver_error,
)
from pytest_gradguard.simulation.placement import (
    CPU,
    PLAIN,
    device_of,
    name_set,
    storage_key,
    tensors_in,
)

Handler = Callable[["Simulation", Any, tuple[Any, ...], dict[str, Any]], Any]

HANDLERS: dict[Any, Handler] = {}
"""The handlers of functions that need more than `Simulation.run`."""


class _Local(threading.local):
    depth = 0
    """How many functions of torch this thread is in."""
    target: torch.device | None = None
    """The GPU of the function that runs now."""
    on_cpu: frozenset[int] = frozenset()
    """The storages among its arguments that are on the CPU nevertheless."""


local = _Local()


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for `functions`."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def answers_on_gpu(*functions: Any) -> Callable[[Callable[[torch.device, Any], Any]], Any]:
    """Register ``answer(device, func)`` for `functions` of tensors on a GPU."""

    def register(answer: Callable[[torch.device, Any], Any]) -> Any:
        @handles(*functions)
        def handle(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
            place = device_of(args[0])
            return func(*args, **kwargs) if place is None else answer(place, func)

        return answer

    return register


class Simulation(TorchFunctionMode):  # type: ignore[misc]
    """The mode of one simulation, shared by all threads."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.active = True
        self._methods: dict[Any, Any] = {}

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active or (_dispatch_modes() and _dispatch_mode(_FAKE) is not None):
            return func(*args, **kwargs)  # fake tensors know their devices
        before = local.target, local.on_cpu
        local.target = None
        local.depth += 1
        try:
            handler = HANDLERS.get(func)
            if handler is None and type(func) not in _BUILT_IN:
                func = self._original_method(func)
                handler = HANDLERS.get(func)
            if handler is not None:
                return handler(self, func, args, kwargs)
            return self.run(func, args, kwargs)
        finally:
            local.depth -= 1
            local.target, local.on_cpu = before

    def _original_method(self, func: Any) -> Any:
        """The tensor method that the program has replaced by `func`, or `func`.

        torch names a method to a mode by looking it up on the class, so a call of the original
        by the replacement arrives here as the replacement.
        """
        known = self._methods.get(func)
        if known is None:
            known = func
            for name, value in vars(torch.Tensor).items():
                if value is func and _METHODS.get(name, func) is not func:
                    known = _METHODS[name]
            self._methods[func] = known
        return known

    def run(self, func: Any, args: Any, kwargs: Any, mixed: bool = False) -> Any:
        """Run `func` on the device that its arguments name or are on.

        Args:
            func: a function of torch.
            args: its arguments.
            kwargs: its keyword arguments.
            mixed: they may be on several devices; the first one counts.

        Raises:
            RuntimeError: the arguments are on several devices.
        """
        named = False
        target: torch.device | None = None
        if kwargs:
            if kwargs.get("device") is not None:
                named = True
                target = self.machine.resolve(kwargs["device"])
                if target is not None:
                    kwargs = {**kwargs, "device": "cpu"}
            if kwargs.get("pin_memory"):
                self.machine.pin()
                result = self.run(func, args, {**kwargs, "pin_memory": False})
                placement.set_pinned(result.untyped_storage())
                return result
        for position, value in enumerate(args):
            if type(value) is torch.device and not named:
                named = True
                target = self.machine.resolve(value)
                if target is not None:
                    args = (*args[:position], CPU, *args[position + 1 :])
        if not named and default_device.CURRENT_DEVICE is not None and _is_factory(func):
            target = self.machine.resolve(default_device.CURRENT_DEVICE)
            if target is not None:
                named = True
                kwargs = {**kwargs, "device": "cpu"}
        if target is not None:
            self.require(target)
        tensors = tensors_in(args)
        if kwargs:
            tensors += tensors_in(kwargs.values())
        common: torch.device | None = None
        on_cpu: list[Any] = []
        if tensors:
            try:
                common, on_cpu = placement.find_common_device(func, tensors, mixed or named)
            except RuntimeError:
                kinds = _classes_with_rules(tensors)
                if not kinds:
                    raise
                with user_code(self):  # calls of their rules are handled, and may be refused, again
                    return _run_rules(kinds, func, args, kwargs)
        if not named:
            target = common
            if common is not None and _is_factory(func) and func not in _FROM_VALUES:
                target = None  # a tensor passed as a number does not name a device
            if common is not None and self.machine.in_bad_fork:
                self.refuse_in_fork(func)
        generator = kwargs.get("generator")
        if generator is not None and (target is not None or not named):
            numerics.check_generator(generator, target)
        if target is None:
            return func(*args, **kwargs)
        keys = frozenset(map(storage_key, on_cpu))
        local.target, local.on_cpu = target, keys
        result = self._run_on(target, func, args, kwargs)
        if keys:
            for tensor in tensors_in((result,)):
                if storage_key(tensor) not in keys:
                    self.tag(tensor, target)
        else:
            self.tag(result, target)
        return result

    def _run_on(self, target: torch.device, func: Any, args: Any, kwargs: Any) -> Any:
        name = _program_operator(func)
        if name is not None:
            return _run_operator(self, name, func, args, kwargs)
        if numerics.draws_independently(func, target):
            with numerics.random_stream(target):
                return numerics.run_with_autocast(func, args, kwargs)
        return numerics.run_with_autocast(func, args, kwargs)

    def tag_saved(self, tensor: Any) -> None:
        """Tag a tensor that the running function saves for its backward pass."""
        if local.target is not None and isinstance(tensor, torch.Tensor):
            with torch._C.DisableTorchFunction():
                if storage_key(tensor) not in local.on_cpu:
                    self.tag(tensor, local.target)

    def tag(self, result: Any, device: torch.device | None) -> None:
        """Put the untagged tensors in `result` on `device`; None: nothing to do."""
        if device is None:
            return
        if isinstance(result, torch.Tensor):
            placement.set_missing_device(result, device, self.machine.memory)
        elif isinstance(result, (list, tuple)):
            for value in result:
                self.tag(value, device)
        elif isinstance(result, dict):
            for value in result.values():
                self.tag(value, device)

    def require(self, device: torch.device) -> None:
        """Initialise CUDA for `device`.

        Raises:
            RuntimeError: CUDA cannot be initialised, or there is no such GPU.
        """
        with user_code(self):
            torch.cuda._lazy_init()  # by its attribute, which the guard patches
        self.machine.check(device.index)

    def refuse_in_fork(self, func: Any) -> None:
        """Raise CUDA's error for a GPU operation in a forked child."""
        if getattr(func, "__name__", "") not in _ALLOWED_IN_FORK:
            with user_code(self):
                torch.cuda._lazy_init()
            raise driver_error(INITIALIZATION)


current: Simulation | None = None
"""The active simulation."""

_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_dispatch_mode: Any = torch._C._get_dispatch_mode
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
"""Factory functions whose result is where their values are."""

_ALLOWED_IN_FORK = name_set(
    "__get__ __set__ size dim stride numel element_size __len__ is_contiguous data_ptr view "
    "detach reshape untyped_storage storage _typed_storage __reduce_ex__ __hash__ ndimension "
    "storage_offset is_floating_point is_complex requires_grad_ expand permute transpose "
    "unsqueeze squeeze t unbind __getitem__ is_shared retain_grad"
)
"""Functions that a forked child may call on its parent's GPU tensors."""


def _is_factory(func: Any) -> bool:
    """Whether `func` makes a tensor on the default device."""
    return func in default_device._device_constructors()


@contextmanager
def user_code(simulation: Simulation) -> Iterator[None]:
    """A block of user code, called by torch, that sees the GPUs."""
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
def inside_torch() -> Iterator[None]:
    """A block without GPUs, as inside torch's functions."""
    local.depth += 1
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        local.depth -= 1


def is_entered(simulation: Simulation) -> bool:
    """Whether the mode is on in this thread."""
    return any(mode is simulation for mode in _function_modes())


def leave_stopped() -> None:
    """Remove stopped simulations from this thread's modes."""
    for mode in _function_modes():
        if isinstance(mode, Simulation) and not mode.active:
            take_off(mode)


def _function_modes() -> list[Any]:
    depth = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(index) for index in range(depth)]


# -- what the program adds to torch: operators, and tensor classes with rules --------------------

_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OF_TORCH = ("aten::", "prims::", "prim::", "quantized::", "_c10d_functional::", "profiler::")


def _program_operator(func: Any) -> str | None:
    """The name of a custom operator; None for any other function."""
    if type(func) not in _OPERATORS:
        return None
    name: str = (
        func._qualified_op_name if isinstance(func, _OPERATORS[1]) else str(func._schema.name)
    )
    return None if name.startswith(_OF_TORCH) else name


def _run_operator(simulation: Simulation, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a custom operator, whose Python body sees the GPUs.

    Raises:
        CannotSimulate: it has a body for CUDA only.
    """
    known = sys.modules.get("torch._library.custom_ops")
    operator = None if known is None else known.OPDEFS.get(name)
    before = None if operator is None else operator._backend_fns

    def seeing_gpus(body: Any) -> Any:
        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            with user_code(simulation):
                return body(*args, **kwargs)

        return run

    if operator is not None and before is not None:
        operator._backend_fns = {kind: seeing_gpus(body) for kind, body in before.items()}
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        if not str(error).startswith(f"Could not run '{name}'"):
            raise
    finally:
        if operator is not None:
            operator._backend_fns = before
    raise CannotSimulate(f"{name}, an operator for CUDA only")


_RULES = "__torch_function__"
_NO_RULES = frozenset(
    (getattr_static(torch.Tensor, _RULES), torch._C._disabled_torch_function_impl)
)


def _classes_with_rules(tensors: list[Any]) -> tuple[Any, ...]:
    """The classes of `tensors` with a `__torch_function__` of their own, not yet called.

    Their tensors may stand for values made on demand (a mask by its sizes), on any device.
    """
    if not torch._C._is_torch_function_enabled():
        return ()
    classes = dict.fromkeys(kind for kind in map(type, tensors) if kind not in PLAIN)
    return tuple(kind for kind in classes if getattr_static(kind, _RULES) not in _NO_RULES)


def _run_rules(kinds: tuple[Any, ...], func: Any, args: Any, kwargs: Any) -> Any:
    """The result of the first class that implements `func`, or NotImplemented."""
    for kind in kinds:
        result = kind.__torch_function__(func, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    return NotImplemented
