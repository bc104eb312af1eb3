"""The guard's data that is pickled with an error of the program.

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
    """The messengers to be unpickled with `error`; None without any."""
    return error.__dict__.get(_MESSENGERS)


def forget(error: BaseException) -> None:
    """Restore `error`: its messengers have been handled."""
    error.__dict__.pop(_MESSENGERS, None)


def _carry(error: BaseException) -> None:
    """Have the messengers of `error` pickled if its class defines its own pickling.

    TensorFlow's and CuPy's classes do, and drop attributes; Python's own pickling keeps them.
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
            return reduction  # it keeps its attributes
        return (rebuild_error, (of(error), rebuild, arguments), *rest)

    attributes: Any = error.__dict__
    attributes["__reduce__"] = __reduce__  # picklers look it up on the object, not its class


def rebuild_error(messengers: Any, rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild, in the parent, an error whose messengers came with it; called by unpickling."""
    error = rebuild(*arguments)
    error.__dict__[_MESSENGERS] = messengers
    return error
