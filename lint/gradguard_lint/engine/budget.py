"""Budgets: how many expressions are evaluated, per root and in total."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast

STEPS = 12_000
"""Expressions per root (twice as many for module code); beyond, calls and loops aren't followed."""

PREPARING = 3_000
"""Expressions per method that only prepares its object's attributes for others."""

ALL_STEPS = 80_000
"""Expressions for all roots of one program."""

RESERVE = 2_000
"""Additional expressions for the tasks of one call."""


DEPTH = 14
"""The limit of nested calls."""

TOO_DEEP = f"reached the limit of {DEPTH} nested calls"


class OutOfSteps(Exception):
    """A root used more than twice its `STEPS`, although nothing new was followed."""


class Budget:
    """The remaining budget of a root.

    Attributes:
        left: the expressions until it is abandoned.
        preparing: whether methods run only to prepare the attributes of their object.
        cut: functions with calls that were skipped for lack of budget: file, first and last line.
        unfinished: functions not analysed completely, by path, line and name, with the reason.
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
        """Below this number of expressions left, nothing new is followed."""
        self._spent = 0
        """Expressions that earlier roots used."""
        self._reserved: set[ast.AST] = set()

    def begin(self, *, first: bool) -> None:
        """Begin the budget of a root, within that of the program."""
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
        """Allow the tasks dispatched at `node` to be followed beyond the budget, once per root."""
        kept = self._kept
        if self.used_up and node not in self._reserved:
            self._reserved.add(node)
            self._kept = max(self.left - RESERVE, 0)
        try:
            yield
        finally:
            self._kept = kept

    def leave(self, path: str, line: int, function: str | None, reason: str = "") -> None:
        """Record that `function` isn't analysed completely: no budget, or another `reason`."""
        if not self.preparing:  # prepared methods are analysed by themselves, too
            self.unfinished.setdefault((path, line, function), reason or self._reason)
            self.is_cutting = self.is_cutting or not reason

    @property
    def used_up(self) -> bool:
        return self.left < self._kept
