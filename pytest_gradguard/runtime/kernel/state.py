"""What the guard learns while it is on: dropped when it ends, and in a forked child if it says so.

No other place clears it. What stands in modules beside this is set once: functions that are to be
called, and facts about code.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.lineage import in_child


class Clearable(Protocol):
    """A container, a `GuardState`, or another object that can become what it was at first."""

    def clear(self) -> object:
        """Drop what it holds."""


class GuardState:
    """The state of one module: its constructor, without arguments, sets all fields."""

    def clear(self) -> None:
        """Set all fields again; no thread sees this without one of them."""
        vars(self).update(vars(type(self)()))


_C = TypeVar("_C", bound=Clearable)

at_end: list[Any] = []
"""Every state of this process."""
in_forked_child: list[Any] = []
"""The states that a forked child drops: they describe its parent."""


def dropped_at_end(state: _C, *, in_child: bool = False) -> _C:
    """Have `state` cleared whenever the guard ends.

    Args:
        state: what is known in this process.
        in_child: a forked child begins without it, too.
    """
    at_end.append(state)
    if in_child:
        in_forked_child.append(state)
    return state


def drop(states: list[Any]) -> None:
    """Clear these."""
    for one in states:
        attempt(one.clear)


in_child(lambda: drop(in_forked_child))
