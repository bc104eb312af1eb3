"""One object a patched name: idempotent, undoable, and careful with others' patches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

_lock = threading.RLock()


def _new_lock() -> None:
    """A child forked while another thread held the lock would wait for ever."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


class Patch:
    """Replaces one attribute by a wrapper of it.

    Args:
        owner: the class or module that holds the attribute.
        name: its name.
        wrap: makes the replacement from the original.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._original: Any = None
        self._mine: Any = None

    def apply(self) -> None:
        """Put the wrapper in place, once.

        Raises:
            AttributeError: the owner has no such attribute of its own.
        """
        if self._mine is not None:
            return
        try:
            original = vars(self._owner)[self._name]
        except KeyError:
            raise AttributeError(f"{self._owner!r} has no {self._name!r} of its own") from None
        mine = self._wrap(original)
        self._original, self._mine = original, mine
        setattr(self._owner, self._name, mine)

    def undo(self) -> None:
        """Put the original back, unless somebody has wrapped ours since: theirs stays."""
        if self._mine is None:
            return
        if vars(self._owner).get(self._name) is self._mine:
            setattr(self._owner, self._name, self._original)
        self._original = self._mine = None


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
