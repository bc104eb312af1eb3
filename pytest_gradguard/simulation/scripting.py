"""TorchScript, which runs in C++ where no mode sees it: what it returns is tagged afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.simulation import tags
from pytest_gradguard.simulation.mode import Simulation
from pytest_gradguard.simulation.replacing import Replacements


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Tag what scripted functions and modules return, and let `torch.jit.load` name a GPU."""

    def tagging(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                given = tags.tensors_in(args) + tags.tensors_in(kwargs.values())
                places = [tags.device_of(tensor) for tensor in given]
            result = original(self, *args, **kwargs)
            place = next((place for place in places if place is not None), None)
            with torch._C.DisableTorchFunction():
                simulation.tag(result, place)
            return result

        return __call__

    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        replaced.put(kind, "__call__", tagging(kind.__call__))

    load = torch.jit.load

    @functools.wraps(load)
    def loading(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = simulation.machine.meant(map_location)
        if place is None:
            return load(f, map_location, *args, **kwargs)
        return load(f, "cpu", *args, **kwargs).to(place)

    replaced.put(torch.jit, "load", loading)
