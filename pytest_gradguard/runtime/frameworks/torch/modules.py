"""PyTorch: modules report their own pickling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.runtime.kernel import shipped_modules, transfer
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

copied: Subscribers[Callable[[Any], None]] = Subscribers()
"""Called with each module that the program itself pickles or copies."""


def _watched(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    active = transfer.active

    @functools.wraps(original)
    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        current = active.transfer
        if current is None:
            for listener in copied.now:
                try:
                    listener(self)
                except Exception as error:
                    fault(error)
            reduction = original(self, protocol)
            return attempt(shipped_modules.passed_on, self, reduction, instead=reduction)
        reduction = original(self, protocol)
        try:
            inside = current.inside
            if inside is None:
                return reduction
            children = self.__dict__.get("_modules")
            if children:
                inside.update(map(id, children.values()))
            return reduction if id(self) in inside else current.module(self, reduction)
        except Exception as error:
            fault(error)
            return reduction

    return __reduce_ex__


reductions = Patches([Patch(torch.nn.Module, "__reduce_ex__", _watched, inherited=True)])
