"""Untyped storages on simulated GPUs: what `torch.save`, `torch.load` and deep copies handle."""

from __future__ import annotations

import functools
from typing import Any

import torch

from pytest_gradguard.simulation import tags
from pytest_gradguard.simulation.mode import Simulation, local
from pytest_gradguard.simulation.replacing import Replacements

_Storage: Any = torch.UntypedStorage
_real_device: Any = torch._C.StorageBase.device


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Let storages tell, and keep, the simulated GPU on which they lie."""
    machine = simulation.machine

    def device(self: Any) -> torch.device:
        if local.depth:
            return _real(self)
        return tags.storage_device(self) or _real(self)

    def is_cuda(self: Any) -> bool:
        return bool(device(self).type == "cuda")

    def placed(storage: Any, place: torch.device | None) -> Any:
        if place is not None:
            tags.put_on_storage(storage, place, machine.memory)
        return storage

    def clone(self: Any) -> Any:
        return placed(_copy(self), tags.storage_device(self))

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        place = machine.meant(device)
        if place == tags.storage_device(self) and (place or torch.device(device).type == "cpu"):
            return self
        if place is None and torch.device(device).type != "cpu":
            return _before["to"](self, device=device, non_blocking=non_blocking)
        if place is not None and not machine.in_bad_fork:
            simulation.prepare(place)  # in a fork, what arrives is refused once it is used
        return placed(_copy(self), place)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return to(self, device=machine.of_cuda_call(device))

    def cpu(self: Any) -> Any:
        return self if tags.storage_device(self) is None else _copy(self)

    def share_memory_(self: Any) -> Any:
        return self if tags.storage_device(self) is not None else _before["share_memory_"](self)

    def is_shared(self: Any) -> bool:
        return tags.storage_device(self) is not None or bool(_before["is_shared"](self))

    def is_pinned(self: Any, device: Any = None) -> bool:
        return bool(vars(self).get(tags.PINNED))

    def pin_memory(self: Any, device: Any = None) -> Any:
        machine.pin()
        copied = _copy(self)
        vars(copied)[tags.PINNED] = True
        return copied

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        place = machine.meant(kwargs.get("device"))
        if place is None:
            return torch._C.StorageBase.__new__(cls, *args, **kwargs)
        if not local.depth:
            simulation.prepare(place)
        made = torch._C.StorageBase.__new__(cls, *args, **{**kwargs, "device": "cpu"})
        return made if local.depth else placed(made, place)

    _before = {name: getattr(_Storage, name) for name in ("to", "share_memory_", "is_shared")}
    replaced.put(_Storage, "device", property(device))
    replaced.put(_Storage, "is_cuda", property(is_cuda))
    for function in (clone, to, cuda, cpu, share_memory_, is_shared, is_pinned, pin_memory):
        name = function.__name__
        functools.update_wrapper(function, getattr(_Storage, name), updated=())
        replaced.put(_Storage, name, function)
    replaced.put(_Storage, "__new__", staticmethod(new))


def _real(storage: Any) -> torch.device:
    place: torch.device = _real_device.__get__(storage)
    return place


def _copy(storage: Any) -> Any:
    made = torch._C.StorageBase.__new__(type(storage), storage.nbytes(), device=_real(storage))
    with torch._C.DisableTorchFunction():
        return made.copy_(storage)
