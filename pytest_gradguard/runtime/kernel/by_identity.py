"""The guard's data on the program's objects, by identity.

Their classes may define `__eq__` and `__hash__`, which a dictionary would call.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from pytest_gradguard.runtime.kernel.faults import freed

_V = TypeVar("_V")


class _Key(weakref.ref[Any]):
    """A weak reference that is equal only to itself."""

    __slots__ = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _forget(known: dict[int, Any], identity: int) -> None:
    found = known.get(identity)
    if found is not None and found[0]() is None:  # else the id is reused by now
        known.pop(identity, None)


class ByIdentity(Generic[_V]):
    """Values by live objects; each is dropped with its object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Key, _V]] = {}
        self.clear = self._known.clear

    def __bool__(self) -> bool:
        return bool(self._known)

    def __setitem__(self, item: Any, value: _V) -> None:
        identity = id(item)
        self._known[identity] = _Key(item, freed(_forget, self._known, identity)), value

    def get(self, item: Any) -> _V | None:
        """The value of `item`, or None."""
        key, value = self._known.get(id(item), (None, None))
        return value if key is not None and key() is item else None

    def pop(self, item: Any) -> _V | None:
        """Remove and return the value of `item`, or None."""
        value = self.get(item)
        self._known.pop(id(item), None)
        return value

    def values(self) -> Iterator[_V]:
        """The values of all live objects."""
        return (value for key, value in list(self._known.values()) if key() is not None)
