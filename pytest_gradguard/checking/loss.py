"""Checks of a closure: its loss is one finite number, and it does not change the parameters."""

from __future__ import annotations

import math
from typing import Any

_ALLOWED = "a number, or a tensor with one element"


def number_of(loss: Any) -> float:
    """The value of a loss.

    Raises:
        TypeError: the closure returned another object.
        ValueError: it returned several numbers, or one that is not finite.
    """
    __tracebackhide__ = True
    if loss is None:
        raise TypeError(f"check_gradients: the closure returned None; it has to return {_ALLOWED}")
    if hasattr(loss, "full_tensor"):
        loss = loss.full_tensor()
    shape = getattr(loss, "shape", ())
    if math.prod(shape) != 1:
        raise ValueError(
            f"check_gradients: the closure returned a tensor of shape {tuple(shape)}; reduce it to "
            "one number, with `.mean()` or `.sum()`"
        )
    try:
        if hasattr(loss, "detach"):
            loss = loss.detach()
        value = float(loss.reshape(()) if hasattr(loss, "reshape") else loss)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"check_gradients: the closure returned {type(loss).__name__!r}; it has to return "
            f"{_ALLOWED}"
        ) from None
    if not math.isfinite(value):
        raise ValueError(f"check_gradients: the loss is {value}; there is no gradient to compare")
    return value


def refuse_change(name: str, same: bool) -> None:
    """Refuse a closure that has changed the parameter called `name`.

    Raises:
        ValueError: `same` is false.
    """
    __tracebackhide__ = True
    if not same:
        raise ValueError(
            f"check_gradients: the closure changes {name!r}; leave the optimizer's step out of it"
        )
