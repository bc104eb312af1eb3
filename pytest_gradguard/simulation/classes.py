"""Tensors of a class that has rules of its own: it sees to the functions that get them.

Such a tensor may stand for something that is made where it is needed, a mask by its sizes say, so
that where it lies itself says nothing.
"""

from __future__ import annotations

from typing import Any

import torch

_ORDINARY: Any = torch.Tensor.__torch_function__.__func__


def with_rules(tensors: list[Any]) -> tuple[Any, ...]:
    """The classes of `tensors` that have rules of their own, and have not been asked yet."""
    if not torch._C._is_torch_function_enabled():
        return ()
    return tuple(dict.fromkeys(kind for kind in map(type, tensors) if _has_rules(kind)))


def _has_rules(kind: Any) -> bool:
    own = getattr(kind.__torch_function__, "__func__", None)  # None: a class without any
    return own is not None and own is not _ORDINARY


def call(kinds: tuple[Any, ...], func: Any, args: Any, kwargs: Any) -> Any:
    """What the rules of the first of `kinds` that has one for `func` give, else NotImplemented."""
    for kind in kinds:
        result = kind.__torch_function__(func, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    return NotImplemented
