"""What of the guard's travels with an error of the program's.

Pickles name a function of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodDescriptorType
from typing import Any

_MESSENGERS = "_gradguard_messengers"


def add(error: BaseException, messenger: Any) -> None:
    """Let `messenger` be unpickled with `error`."""
    error.__dict__.setdefault(_MESSENGERS, []).append(messenger)
    _carry(error)


def of(error: BaseException) -> Any:
    """What is unpickled with `error`; None: nothing is."""
    return error.__dict__.get(_MESSENGERS)


def forget(error: BaseException) -> None:
    """Leave `error` as it was: its messengers have been heard."""
    error.__dict__.pop(_MESSENGERS, None)


def _carry(error: BaseException) -> None:
    """Have the messengers of `error` travel, where its class says itself how it is pickled.

    TensorFlow's and CuPy's do, and leave their attributes behind; Python's own take them along.
    """
    kind = type(error)
    if isinstance(kind.__reduce__, MethodDescriptorType) or (
        kind.__reduce_ex__ is not object.__reduce_ex__
    ):
        return

    def __reduce__() -> Any:
        attributes = error.__dict__
        attributes.pop("__reduce__", None)
        reduction = kind.__reduce__(error)
        if not isinstance(reduction, tuple):
            return reduction
        rebuild, arguments, *rest = reduction
        if any(isinstance(one, dict) and _MESSENGERS in one for one in (*arguments, *rest)):
            return reduction  # it takes its attributes along
        return (rebuild_error, (of(error), rebuild, arguments), *rest)

    attributes: Any = error.__dict__
    attributes["__reduce__"] = __reduce__  # picklers ask the object, not its class


def rebuild_error(messengers: Any, rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild, in the parent, an error whose messengers came with it; called by unpickling."""
    error = rebuild(*arguments)
    error.__dict__[_MESSENGERS] = messengers
    return error
