"""Indexing: an index on the CPU goes with a tensor on a GPU, and not the other way round."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.simulation import errors, tags
from pytest_gradguard.simulation.mode import Simulation, handles

_tensor: Any = torch.Tensor


@handles(_tensor.__getitem__)
def _getitem(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, index = args
    place = tags.device_of(tensor)
    _check_index(place, index)
    if place is not None and simulation.machine.in_bad_fork:
        return simulation.ordinary(func, (tensor, index), kwargs, mixed=True)
    result = func(tensor, index)
    simulation.tag(result, place)
    return result


@handles(_tensor.__setitem__)
def _setitem(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, index, value = args
    place = tags.device_of(tensor)
    _check_index(place, index)
    if (
        isinstance(value, torch.Tensor)
        and value.dim()
        and tags.device_of(value) != place
        and any(_selects(one) for one in _indices(index))
    ):
        cpu = torch.device("cpu")
        raise errors.argument("index_put_", place or cpu, tags.device_of(value) or cpu, "values")
    return func(tensor, index, value)


def _indices(index: Any) -> list[Any]:
    values = index if isinstance(index, (list, tuple)) else (index,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _selects(index: Any) -> bool:
    """Whether `index` is more than one number."""
    return bool(index.dim() > 0 or index.dtype is torch.bool)


def _check_index(place: torch.device | None, index: Any) -> None:
    for one in _indices(index):
        where = tags.device_of(one)
        if where is not None and where != place and _selects(one):
            raise errors.index(place or "cpu")
