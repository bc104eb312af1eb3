"""One object a patched name: idempotent, undoable, and careful with others' patches."""

from __future__ import annotations

import inspect
import os
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

_lock = threading.RLock()


def _new_lock() -> None:
    """A child forked while another thread held the lock would wait forever."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def on_class(original: Any, kind: type) -> Callable[..., Any]:
    """What `kind.name` gives where `original` is what stands under that name in a class.

    It does for methods of classes and static ones, written in Python or in C: a `wrap` that has to
    call such a method need not know its kind, which changes between versions of a library.
    """
    bound: Callable[..., Any] = original.__get__(None, kind)
    return bound


class Patch:
    """Replaces one attribute by a wrapper of it.

    Args:
        owner: the class or module that holds the attribute.
        name: its name.
        wrap: makes the replacement from the original.
        inherited: the attribute may stand on a base class of the owner.
    """

    def __init__(
        self, owner: Any, name: str, wrap: Callable[[Any], Any], *, inherited: bool = False
    ) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._inherited = inherited
        self._original: Any = None
        self._mine: Any = None
        self._own = True

    def apply(self) -> None:
        """Put the wrapper in place, once.

        Raises:
            AttributeError: the owner has no such attribute (of its own).
        """
        if self._mine is not None:
            return
        self._own = self._name in vars(self._owner)
        if self._own:
            original = vars(self._owner)[self._name]
        elif self._inherited:
            original = inspect.getattr_static(self._owner, self._name)
        else:
            raise AttributeError(f"{self._owner!r} has no {self._name!r} of its own")
        mine = self._wrap(original)
        self._original, self._mine = original, mine
        setattr(self._owner, self._name, mine)

    def undo(self) -> None:
        """Put the original back, unless somebody has wrapped ours since: theirs stays.

        Where the other wrapper is gradguard's too, its own undo puts our original back.
        """
        if self._mine is None:
            return
        if vars(self._owner).get(self._name) is self._mine:
            original = self._original
            while isinstance(original, types.FunctionType) and original in _buried:
                original = _buried[original]
            if self._own:
                setattr(self._owner, self._name, original)
            else:
                delattr(self._owner, self._name)
        elif isinstance(self._mine, types.FunctionType):
            _buried[self._mine] = self._original
        self._original = self._mine = None


_buried: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""What stood below each wrapper that was undone while another one stood on it."""


class Patches:
    """Several patches as one: applied all or none, undone in reverse."""

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches
        self.applied = False

    def apply(self) -> None:
        """Apply all; where one fails, undo the others and raise what it raised."""
        if self.applied:
            return
        with _lock:
            if self.applied:
                return
            done: list[Patch] = []
            try:
                for patch in self._patches:
                    patch.apply()
                    done.append(patch)
            except BaseException:
                for patch in reversed(done):
                    patch.undo()
                raise
            self.applied = True

    def undo(self) -> None:
        """Undo all."""
        with _lock:
            if self.applied:
                self.applied = False
                for patch in reversed(self._patches):
                    patch.undo()


class LatePatches:
    """Patches of what may be loaded later: made once, when it is there.

    Args:
        make: makes them; of what is not loaded, or is built otherwise than we know it, it makes
            none, and is asked again.
    """

    def __init__(self, make: Callable[[], list[Patch]]) -> None:
        self._make = make
        self._patches: Patches | None = None

    @property
    def applied(self) -> bool:
        """Whether they were made and are in place."""
        return self._patches is not None and self._patches.applied

    def apply(self) -> None:
        """Apply them, if they can be made."""
        if self._patches is None:
            made = self._make()
            if not made:
                return
            self._patches = Patches(made)
        self._patches.apply()

    def undo(self) -> None:
        """Undo them, if they were made."""
        if self._patches is not None:
            self._patches.undo()
