"""On which simulated GPU a tensor lies: a tag on its storage.

The tensors of a simulated program are plain CPU tensors. What says that one lies on a GPU is kept
by its storage's Python object, which torch keeps as long as the storage: whatever shares the
storage (views, `detach`, `.data`, a `Parameter` made of it) lies there too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_gradguard.runtime.kernel import simulated_devices
from pytest_gradguard.simulation.memory import Memory

NAME = "_gradguard_device"
PINNED = "_gradguard_pinned"

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_storage_of: Any = torch._C.TensorBase.untyped_storage


class Tag:
    """Where a storage lies. It dies with the storage, and gives its memory back."""

    __slots__ = ("_memory", "_size", "device")

    def __init__(self, device: torch.device, size: int, memory: Memory) -> None:
        self.device = device
        self._memory = memory
        self._size = memory.take(device.index, size)

    def __del__(self) -> None:
        try:
            self._memory.free(self.device.index, self._size)
        except Exception:  # the interpreter is on its way down
            pass


def device_of(tensor: Any) -> torch.device | None:
    """The simulated GPU on which `tensor` lies; None: where torch says that it is."""
    holder = _holder(tensor)
    tag = None if holder is None else vars(holder).get(NAME)
    return None if tag is None else tag.device


simulated_devices.device_of = device_of


def put(tensor: Any, device: torch.device, memory: Memory) -> None:
    """Say that `tensor` lies on `device`."""
    holder = _holder(tensor)
    if holder is not None:
        size = holder.nbytes() if isinstance(holder, torch.UntypedStorage) else 0
        vars(holder)[NAME] = Tag(device, size, memory)


def put_if_bare(tensor: Any, device: torch.device, memory: Memory) -> None:
    """The same, where nothing says yet where it lies."""
    holder = _holder(tensor)
    if holder is not None and NAME not in vars(holder):
        size = holder.nbytes() if isinstance(holder, torch.UntypedStorage) else 0
        vars(holder)[NAME] = Tag(device, size, memory)


def remove(tensor: Any) -> None:
    """Say that `tensor` lies on the CPU."""
    holder = _holder(tensor)
    if holder is not None:
        vars(holder).pop(NAME, None)


def key(tensor: Any) -> int:
    """Equal for tensors that share their memory."""
    return id(_holder(tensor))


def storage_device(storage: Any) -> torch.device | None:
    """The simulated GPU on which an untyped storage lies."""
    tag = vars(storage).get(NAME)
    return None if tag is None else tag.device


def put_on_storage(storage: Any, device: torch.device, memory: Memory) -> None:
    """Say that an untyped storage lies on `device`."""
    vars(storage)[NAME] = Tag(device, storage.nbytes(), memory)


def _holder(tensor: Any) -> Any:
    """The object that carries the tag of `tensor`: its storage, or, where it has none, itself."""
    try:
        if type(tensor) in _PLAIN:
            return _storage_of(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return _storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            return _holder(functorch.get_unwrapped(tensor))
        return tensor  # sparse and the like


def tensors_in(values: Iterable[Any], depth: int = 3) -> list[Any]:
    """The tensors among `values`, and in the lists, tuples and dicts among them."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif depth and isinstance(value, (list, tuple)):
            found += tensors_in(value, depth - 1)
        elif depth and isinstance(value, dict):
            found += tensors_in(value.values(), depth - 1)
    return found
