"""Operations on lists of tensors, with which optimizers work: each place in the lists by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_gradguard.simulation import mixing, tags
from pytest_gradguard.simulation.mode import Simulation, handles
from pytest_gradguard.simulation.replacing import Replacements

_functions = [getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_")]
_BETWEEN_DEVICES = ("_foreach_copy_",)


@handles(*_functions)
def _foreach(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Tensors at one place of the lists lie together; results lie where those of the first do.

    Raises:
        RuntimeError: tensors at one place lie on several devices.
    """
    lists = [value for value in (*args, *kwargs.values()) if _holds_tensors(value)]
    if not lists:
        return func(*args, **kwargs)
    places = [[tags.device_of(tensor) for tensor in tensors] for tensors in lists]
    gpu = next((place for some in places for place in some if place is not None), None)
    if gpu is None:
        return func(*args, **kwargs)
    if simulation.machine.in_bad_fork:
        simulation._refuse_in_fork(func)
    if func.__name__ not in _BETWEEN_DEVICES and any(some != places[0] for some in places[1:]):
        for tensors in zip(*lists, strict=False):
            mixing.common(func, list(tensors))
    result = func(*args, **kwargs)
    if isinstance(result, (list, tuple)):
        for tensor, place in zip(result, places[0], strict=False):
            simulation.tag(tensor, place)
    return result


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], torch.Tensor)


def install(replaced: Replacements) -> None:
    """Let tensors be grouped by the simulated GPUs on which they lie."""
    original = torch._C._group_tensors_by_device_and_dtype

    def group(lists: Sequence[Sequence[Any]], with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (device, dtype), (columns, indices) in original(lists, with_indices).items():
            with torch._C.DisableTorchFunction():
                places = [tags.device_of(tensor) or device for tensor in columns[0]]
            for place in dict.fromkeys(places):
                chosen = [row for row, one in enumerate(places) if one == place]
                groups[place, dtype] = (
                    [[column[row] for row in chosen] if column else column for column in columns],
                    [indices[row] for row in chosen] if indices else indices,
                )
        return groups

    replaced.put(torch._C, "_group_tensors_by_device_and_dtype", group)
