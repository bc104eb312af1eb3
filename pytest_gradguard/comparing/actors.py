"""The state that an actor's process keeps between tasks, while its tasks run inline.

An actor works on the program's own tensors, so that a graph over them is complete. Its writes to
them are its own: its values and gradients are set before each of its tasks, and removed after it.
Tensors that it has created itself are not touched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pytest_gradguard.comparing.before import Before

Brings = Callable[[list[Any], "list[Any] | None"], list[bool]]


class _Copy(NamedTuple):
    """The actor's version of a tensor of the program.

    Attributes:
        tensor: a weak reference to it.
        value: its value; None: the actor has not written it.
        gradient: its gradient.
    """

    tensor: weakref.ref[Any]
    value: Any
    gradient: Any


class Process:
    """The tensors of the process of an actor."""

    def __init__(self) -> None:
        self._made: dict[int, weakref.ref[Any]] = {}
        self._copies: dict[int, _Copy] = {}
        self._lost: dict[int, str] = {}

    def has_made(self, tensor: Any) -> bool:
        """Whether one of its tasks has created `tensor`."""
        known = self._made.get(id(tensor))
        return known is not None and known() is tensor

    def add_made(self, tensors: Iterable[Any], before: Iterable[Before]) -> None:
        """Record `tensors`, except those from `before` the task, as its own."""
        known = {id(one.tensor) for one in before}
        self._made.update({id(one): weakref.ref(one) for one in tensors if id(one) not in known})

    def _copy_of(self, tensor: Any) -> _Copy | None:
        known = self._copies.get(id(tensor))
        return known if known is not None and known.tensor() is tensor else None

    def enter(self, before: Iterable[Before]) -> None:
        """Set its versions of the program's tensors."""
        for one in before:
            known = self._copy_of(one.tensor)
            if known is not None:
                if known.value is not None:
                    one.tensor.data.copy_(known.value)
                if known.gradient is not None:
                    one.tensor.grad = known.gradient
            one.version = one.tensor._version

    def leave(self, before: Sequence[Before], brings: Brings, lost: str) -> list[Before]:
        """Remove its versions again.

        Args:
            before: the program's own versions.
            brings: which values or gradients the task brings back.
            lost: the text on versions that never come back.

        Returns:
            Its own versions.
        """
        own = []
        for one in before:
            known = self._copy_of(one.tensor)
            written = one.changed or one.tensor._version != one.version
            written = written or (known is not None and known.value is not None)
            if not written and one.left is None:
                self._copies.pop(id(one.tensor), None)
                self._lost.pop(id(one.tensor), None)
                continue
            value = one.tensor.detach().clone() if written else None
            copy = _Copy(weakref.ref(one.tensor), value, one.left)
            self._copies[id(one.tensor)] = copy
            own.append(one)
            if known is None or _differ(known.value, value) or _differ(known.gradient, one.left):
                self._lost[id(one.tensor)] = lost
        changed = [one for one in own if one.changed]
        left = [one for one in own if one.left is not None]
        values = brings([one.tensor.detach() for one in changed], [one.value for one in changed])
        gradients = brings([one.left for one in left], None)
        for one, came in zip([*changed, *left], [*values, *gradients], strict=True):
            if came:
                self._lost.pop(id(one.tensor), None)
        return own

    def lost(self, gradients_only: bool) -> Iterator[tuple[Any, Any, Any, str]]:
        """The versions that it never brought back: tensors, values, gradients and texts.

        Args:
            gradients_only: only of tensors that it has not written.
        """
        for number in list(self._lost):
            copy = self._copies[number]
            tensor = copy.tensor()
            if not (gradients_only and copy.value is not None):
                said = self._lost.pop(number)
                if tensor is not None:
                    yield tensor, copy.value, copy.gradient, said


def _differ(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is not other
    return one.shape != other.shape or bool((one != other).any())
