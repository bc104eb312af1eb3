"""Attributes of torch that are replaced while the simulation is on."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

_ABSENT: Any = object()


def class_facade(kinds: tuple[type, ...], make: Callable[..., Any]) -> Any:
    """A class that stands for `kinds`; calling it calls `make`."""

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kinds)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, kinds)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

    return Kind(kinds[0].__name__, (), {"__module__": "torch"})


class Replacements:
    """Replaced attributes, with their original values."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, **values: Any) -> None:
        """Set attributes of `owner`, which need not exist, until `undo`."""
        for name, value in values.items():
            before = vars(owner).get(name, _ABSENT)
            setattr(owner, name, value)
            self._done.append((owner, name, before, vars(owner).get(name, value)))

    def put_volatile(self, owner: Any, **values: Any) -> None:
        """Set attributes of `owner` that torch itself changes."""
        for name, value in values.items():
            self._done.append((owner, name, vars(owner).get(name, _ABSENT), _ABSENT))
            setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any], *aliases: Any) -> None:
        """Replace a function by one that calls ``around(original, ...)``.

        Args:
            owner: its module or class.
            name: its name.
            around: called with the original function and the arguments.
            aliases: other owners of the same function.
        """
        original = getattr(owner, name)
        attributes = ("__dict__",) if isinstance(original, types.FunctionType) else ()

        @functools.wraps(original, updated=attributes)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        for one in (owner, *aliases):
            self.put(one, **{name: wrapper})

    def undo(self) -> None:
        """Restore the originals, except where the program has set another value since."""
        for owner, name, before, mine in reversed(self._done):
            if mine is not _ABSENT and vars(owner).get(name, _ABSENT) is not mine:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._done.clear()
