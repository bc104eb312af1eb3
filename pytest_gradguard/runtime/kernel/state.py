"""The guard's state while it is on: dropped when it ends, and in a forked child on request.

Nothing else clears it. Other module-level data is set once: functions to call, and facts about
code.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.lineage import in_child


class Clearable(Protocol):
    """A container, a `GuardState`, or another object that can be reset."""

    def clear(self) -> object:
        """Reset it."""


class GuardState:
    """The state of one module: its constructor, without arguments, sets all fields."""

    def clear(self) -> None:
        """Reset all fields; no thread sees the object without one of them."""
        vars(self).update(vars(type(self)()))


_C = TypeVar("_C", bound=Clearable)

at_end: list[Any] = []
"""All states of this process."""
in_forked_child: list[Any] = []
"""The states that a forked child drops: they describe its parent."""


def dropped_at_end(state: _C, *, in_child: bool = False) -> _C:
    """Have `state` cleared whenever the guard ends.

    Args:
        state: the state.
        in_child: a forked child starts without it, too.
    """
    at_end.append(state)
    if in_child:
        in_forked_child.append(state)
    return state


def drop(states: list[Any]) -> None:
    """Clear these states."""
    for one in states:
        attempt(one.clear)


in_child(lambda: drop(in_forked_child))
