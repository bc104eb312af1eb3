"""Observes reads of the `.grad` of parameters, while there are listeners.

`torch.Tensor.grad` is not replaced: torch looks it up for subclasses of tensors, and reading it
from a tensor that is no leaf gives a warning, which a frame of ours would move.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.patching import Patch, Patches
from pytest_gradguard.runtime.kernel.subscribers import Subscribers

Listener = Callable[[Any, FrameType], object]
"""Gets the parameter, and the frame that reads its gradient."""


class _Watched:
    """Replaces the attribute `grad` of parameters; looked up on the class, it is torch's own.

    Args:
        original: torch's own attribute.
    """

    def __init__(self, original: Any) -> None:
        self._original = original
        self._read = original.__get__

    def __get__(self, parameter: Any, kind: Any = None) -> Any:
        if parameter is None:
            return self._original
        gradient = self._read(parameter)
        for listener in _listeners.now:
            attempt(listener, parameter, sys._getframe(1))
        return gradient

    def __set__(self, parameter: Any, gradient: Any) -> None:
        self._original.__set__(parameter, gradient)

    def __delete__(self, parameter: Any) -> None:
        self._original.__delete__(parameter)


_listeners: Subscribers[Listener] = Subscribers(
    Patches([Patch(torch.nn.Parameter, "grad", _Watched, inherited=True)], lasting=True)
)
subscribe, unsubscribe = _listeners.subscribe, _listeners.unsubscribe
