"""Tensors that require grad, as they are unpickled in this process by any means."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.frameworks.torch.tensors import requires_grad
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

Listener = Callable[[Any, FrameType], object]
"""Gets a tensor, and the frame that has it rebuilt."""

_REBUILDS = (
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
    ("torch.multiprocessing.reductions", "rebuild_tensor"),
)


def _rebuilt(tensor: Any, *args: Any, **kwargs: Any) -> None:
    if requires_grad(tensor):
        rebuilding = caller()
        for listener in _listeners.now:
            attempt(listener, tensor, rebuilding)


def _forget_what_rebuilds() -> None:
    """Have `torch.load` look up its rebuilding functions again."""
    known: Any = sys.modules.get("torch._weights_only_unpickler")
    forget = getattr(getattr(known, "_get_allowed_globals", None), "cache_clear", None)
    if forget is not None:
        forget()


class _Rebuilding(Patches):
    def apply(self) -> None:
        if not self.applied:
            super().apply()
            _forget_what_rebuilds()

    def undo(self) -> None:
        if self.applied:
            super().undo()
            _forget_what_rebuilds()


_listeners: Subscribers[Listener] = Subscribers(
    _Rebuilding(
        [
            observe(import_module(module), name, after=_rebuilt)
            for module, name in _REBUILDS
            if hasattr(import_module(module), name)
        ],
        lasting=True,
    )
)
subscribe, unsubscribe = _listeners.subscribe, _listeners.unsubscribe
