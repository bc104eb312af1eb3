"""Tensors on simulated GPUs that the standard library's pickler ships: their memory is shared.

On real hardware the receiver opens the sender's GPU memory. Here it maps the memory in which the
tensor really lies, which torch shares between processes anyway.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.multiprocessing import reductions

from pytest_gradguard.simulation import tags
from pytest_gradguard.simulation.mode import Simulation, inside, local
from pytest_gradguard.simulation.replacing import Replacements


class Handle:
    """What stands for the memory of one storage: pickled, it maps that memory."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        local.depth += 1
        try:
            return (_opened, reductions.reduce_storage(self.storage))
        finally:
            local.depth -= 1


def _opened(rebuild: Any, arguments: tuple[Any, ...]) -> Handle:
    return Handle(rebuild(*arguments))


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Let `torch.multiprocessing` ship tensors on simulated GPUs."""
    original = reductions.rebuild_cuda_tensor

    def _share_cuda_(self: Any) -> tuple[Any, ...]:
        place = tags.storage_device(self)
        assert place is not None
        return (place.index, Handle(self), self.nbytes(), 0, None, 0, None, False)

    @functools.wraps(original)
    def rebuild_cuda_tensor(
        kind: Any, size: Any, stride: Any, offset: Any, _: Any, dtype: Any, *about: Any
    ) -> Any:
        device, handle, requires_grad = about[0], about[1], about[4]
        place = torch.device("cuda", device)
        if not simulation.machine.in_bad_fork:  # there, it is refused once it is used
            simulation.prepare(place)
        storage = handle.storage
        tags.put_on_storage(storage, place, simulation.machine.memory)
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        with inside():
            tensor = torch._utils._rebuild_tensor(typed, offset, size, stride)
            if kind is torch.nn.Parameter:
                return torch.nn.Parameter(tensor, requires_grad=requires_grad)
            tensor.requires_grad = requires_grad
        return tensor

    replaced.put(torch.UntypedStorage, "_share_cuda_", _share_cuda_)
    replaced.put(reductions, "rebuild_cuda_tensor", rebuild_cuda_tensor)
