"""How much of a program is followed: so many expressions of each root, and of all together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast

STEPS = 12_000
"""Expressions that one root may take (the module's own code twice as many); beyond them, calls and
loops are not followed any more."""

PREPARING = 3_000
"""Expressions that a method may take which only sets its object's attributes for others."""

ALL_STEPS = 80_000
"""Expressions that all roots of one program may take together."""

RESERVE = 2_000
"""Expressions that the tasks of one call may take beyond that."""


DEPTH = 14
"""Calls within calls that are followed."""

TOO_DEEP = f"reached the limit of {DEPTH} nested calls"


class OutOfSteps(Exception):
    """A root took more than twice its `STEPS`, although nothing new was followed."""


class Budget:
    """What a root may still take.

    Attributes:
        left: the expressions after which it is left as it is.
        preparing: whether methods only set the attributes of an object for others, roughly.
        cut: the functions that were not run where they were called, for the budget was used up:
            their files, first and last lines.
        unfinished: all functions that were not followed to their end, by path, line and name, each
            with the reason.
        is_cutting: whether the budget of this root has left something unfinished.
    """

    def __init__(self) -> None:
        self.left = 0
        self.preparing = False
        self.cut: dict[int, tuple[str, int, int]] = {}
        self.unfinished: dict[tuple[str, int, str | None], str] = {}
        self.is_cutting = False
        self._reason = ""
        self._given = 0
        self._kept = 0
        """With fewer left, nothing new is followed."""
        self._spent = 0
        """What the roots before have taken."""
        self._reserved: set[ast.AST] = set()

    def begin(self, *, first: bool) -> None:
        """A root has a budget of its own, and a share in that of all."""
        self._reserved.clear()
        self.is_cutting = False
        self._spent += self._given - self.left
        steps = PREPARING if self.preparing else STEPS
        self._given = self.left = min(4 * steps, 2 * ALL_STEPS - self._spent)
        own, all_left = 2 * steps if first else steps, ALL_STEPS - self._spent
        self._kept = self.left - min(own, all_left)
        most, whose = own, "a module's own code" if first else "one function"
        if own > all_left:
            most, whose = ALL_STEPS, "one program"
        self._reason = f"reached the limit of {most:,} steps for {whose}"

    @contextmanager
    def reserve(self, node: ast.AST) -> Iterator[None]:
        """Let the tasks that are handed out at `node` be followed, once in a root, though the
        budget is used up."""
        kept = self._kept
        if self.used_up and node not in self._reserved:
            self._reserved.add(node)
            self._kept = max(self.left - RESERVE, 0)
        try:
            yield
        finally:
            self._kept = kept

    def leave(self, path: str, line: int, function: str | None, reason: str = "") -> None:
        """Remember that `function` is not followed to its end: the budget is used up, or there is
        another `reason`."""
        if not self.preparing:  # whatever is prepared is run by itself, too
            self.unfinished.setdefault((path, line, function), reason or self._reason)
            self.is_cutting = self.is_cutting or not reason

    @property
    def used_up(self) -> bool:
        """Whether what is not yet followed stays unknown."""
        return self.left < self._kept
