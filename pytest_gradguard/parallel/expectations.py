"""Predict the gradients that the results of a task will receive.

In a training loop they are equal in every step if the loss is linear in the results, as a sum or a
mean of losses is. A prediction is used only where it is exact; a wrong one costs a backward pass.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch

from pytest_gradguard.parallel import bits
from pytest_gradguard.parallel.shipping import pack, unpack


class _History:
    """The gradients that the results of one task received."""

    last: Any = None
    misses: int | None = None
    unused = False
    """The last prediction led to no backward pass yet."""


_MAX_MISSES = 2
_MAX_TASKS, _MAX_ELEMENTS = 4096, 1024
_histories: OrderedDict[Any, _History] = OrderedDict()
_lock = threading.Lock()


def predict(key: Any) -> Any:
    """The gradients to expect for the results of a task: see `TaskSpec.guess`."""
    with _lock:
        history = _histories.setdefault(key, _History())
        _histories.move_to_end(key)
        if len(_histories) > _MAX_TASKS:
            _histories.popitem(last=False)
        if history.unused:
            history.misses = (history.misses or 0) + 1
        history.unused = True
        if history.misses is None:
            return "ones"
        if history.misses < _MAX_MISSES and history.last is not None:
            return [one if one is None else pack(one) for one in history.last]
        history.unused = False
        return None


def record(key: Any, predicted: Any, cotangents: list[Any]) -> bool:
    """Record the gradients that the results of a task received.

    Returns:
        Whether they are the predicted ones.
    """
    if predicted == "ones":
        right = len(cotangents) == 1 and cotangents[0] is not None and cotangents[0].numel() == 1
        right = right and _same(cotangents, [torch.ones_like(cotangents[0])])
    else:
        right = bool(predicted) and _same(
            cotangents, [one if one is None else unpack(*one) for one in predicted]
        )
    with _lock:
        history = _histories.setdefault(key, _History())
        history.unused = False
        if sum(one.numel() for one in cotangents if one is not None) > _MAX_ELEMENTS:
            history.misses = _MAX_MISSES
            return right
        if right or (history.last is not None and _same(cotangents, history.last)):
            history.misses = 0
        elif history.misses is None:
            scalars = all(one is None or one.numel() == 1 for one in cotangents)
            history.misses = 1 if scalars else _MAX_MISSES
        else:
            history.misses = min(_MAX_MISSES, history.misses + 1)
        history.last = [one if one is None else one.clone() for one in cotangents]
    return right


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        other is None if one is None else other is not None and bits.same_tensor(one, other)
        for one, other in zip(some, others, strict=True)
    )
