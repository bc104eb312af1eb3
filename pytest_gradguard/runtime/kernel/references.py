"""Weak references to the program's tensors that do not affect the program.

`torch.utils.swap_tensors`, by which `Module.to` and `load_state_dict` convert parameters if torch's
swap setting or a tensor subclass asks for it, refuses tensors that have weak references. While the
guard or a watch is on, torch does not count ours; when the last of them ends, they are cleared,
even if a `Reference` is still held.

A reference is to the tensor object: after a swap it leads to the same object, with new content.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch

swapping: list[Callable[[Any], None]] = []
"""Called with each referenced tensor before its content is swapped. A hook on it moves with the
content, and torch runs none that is registered afterwards."""


class _Own(weakref.ref[Any]):
    """A weak reference of the guard; Python never shares one with the program."""

    __slots__ = ("identity",)
    identity: int


class Reference:
    """A weak reference, one for each tensor. Calling it returns the tensor, or None."""

    __slots__ = ("_gone", "_weak")

    def __init__(self, weak: _Own | None) -> None:
        self._weak = weak
        self._gone: tuple[Callable[[], object], ...] = ()

    def __call__(self) -> Any:
        weak = self._weak
        return None if weak is None else weak()


_known: dict[int, Reference] = {}
"""The references by the id of a live object."""


def refer(
    item: Any, gone: Callable[[], object] | None = None, *, lasting: bool = False
) -> Reference:
    """The reference to `item`; a dead one if neither guard nor watch is on.

    Args:
        item: a tensor, or another weakly referenceable object.
        gone: called when `item` is freed while the guard or a watch is on.
        lasting: this process reports to its parent, with no guard or watch of its own.
    """
    identity = id(item)
    reference = _known.get(identity)
    held = None if reference is None else reference._weak
    if reference is None or held is None or held() is not item:
        if not (lasting or watching.is_on()):
            return Reference(None)
        if not _patches.applied:
            _patches.apply()
        weak = _Own(item, _freed)
        weak.identity = identity
        reference = _known[identity] = Reference(weak)
    if gone is not None:
        reference._gone += (gone,)
    return reference


def _freed(weak: weakref.ref[Any], ending: Callable[[], bool] = sys.is_finalizing) -> None:
    """Handle a freed object; called by the interpreter."""
    if not ending():  # else modules lose their globals, in no order
        attempt(_forget, weak)


def _forget(weak: _Own) -> None:
    known = _known.get(weak.identity)
    if known is None or known._weak is not weak:
        return
    del _known[weak.identity]
    for gone in known._gone:
        attempt(gone)


def undo() -> None:
    """Clear all references, and restore torch."""
    while _known:
        try:
            _, reference = _known.popitem()
        except KeyError:  # its object has just been freed
            break
        reference._weak = None
        reference._gone = ()
    _patches.undo()


watching.at_end(undo)


class _WithoutOurs:
    """The module `weakref` for `torch.utils`, without the guard's own references."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def getweakrefs(self, item: Any) -> list[Any]:
        """The weak references to a tensor that is about to be swapped."""
        every: list[Any] = self._original.getweakrefs(item)
        others = [one for one in every if type(one) is not _Own]
        if len(others) != len(every):
            for hear in swapping:
                try:
                    hear(item)
                except Exception as error:
                    fault(error)
        return others


def _make() -> list[Patch]:
    utilities = sys.modules.get("torch.utils")
    # The function looks up its module's `weakref`, so this works under any imported name.
    if not hasattr(utilities, "swap_tensors") or getattr(utilities, "weakref", None) is not weakref:
        return []
    return [Patch(utilities, "weakref", _WithoutOurs)]


_patches = LatePatches(_make)
