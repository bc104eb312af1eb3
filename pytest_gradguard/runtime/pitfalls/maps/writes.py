"""Torch's writes to memory: a mode that observes each in-place operation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.pitfalls.maps.regions import Region

Listener = Callable[[int, Region], object]


class Writes(TorchDispatchMode):  # type: ignore[misc]  # torch does not type it
    """A mode that calls `listener` for each write.

    Args:
        listener: gets the address of the first element, and the region.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            for index, name in _written(func):
                value = args[index] if index < len(args) else kwargs.get(name)
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                        self._report(tensor)
        except Exception as error:
            fault(error)
        return func(*args, **kwargs)

    def _report(self, tensor: Any) -> None:
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        if tensor.device.type == "cpu" and tensor.numel():
            self._listener(tensor.data_ptr(), Region(0, tuple(tensor.shape), strides, size))


@functools.cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """The places and names of the arguments that an operation writes to."""
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
