"""Loops that are being run, and what is known of the objects that their turns make and consume."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import Atom, Function, Site, Value
from pytest_gradguard.records import record


@record
class Loop:
    """A loop that is being run.

    Attributes:
        function: the function around it.
        keys: stand for its element: where that is known, one of the turns is run.
        turn: the number of its turn, which no other turn of any loop has.
    """

    site: Site
    function: Function | None
    keys: frozenset[Key]
    turn: int = 0


class Turns:
    """Turns of loops: where the run is in them, and which objects are of one turn alone.

    Moments are counted by the newest identity there was.

    Attributes:
        loops: the loops around, the innermost last; a comprehension is none of them.
        depth: how many loops and comprehensions are around.
        began: when the innermost turn of a loop or comprehension began; 0: there is none.
        made: when each thing was made last: at its own identity, where it is made once.
        consumed: when a turn consumed each thing as the item of what its loop iterates.
        loop_invariant_args: what all turns pass to the constructors of objects, by object.
        loop_invariant_fields: what all turns give a single attribute, by object and name.
        per_turn_args: values that only one turn passes to a constructor, by object.
        rewriting: the places where loops that are being run replace each item of a container.
        items: which item each loop and comprehension around has, of those run item by item.
    """

    def __init__(self) -> None:
        self.loops: tuple[Loop, ...] = ()
        self.depth = 0
        self.began = 0
        self.made: dict[int, int] = {}
        self.consumed: dict[int, int] = {}
        self.loop_invariant_args: dict[int, Set[int]] = {}
        self.loop_invariant_fields: dict[tuple[int, str], Set[int]] = {}
        self.per_turn_args: dict[int, Set[Atom]] = {}
        self.rewriting: set[ast.AST] = set()
        self.items: tuple[int, ...] = ()

    def item_by_item(self, known: tuple[Value, ...]) -> Iterator[Value]:
        """The items of a sequence, each while a turn has it."""
        around = self.items
        try:
            for number, item in enumerate(known):
                self.items = (*around, number)
                yield item
        finally:
            self.items = around

    def sites(self) -> tuple[Site, ...]:
        """The loops around, as places in the program."""
        return tuple(loop.site for loop in self.loops)

    def numbers(self) -> tuple[int, ...]:
        """The turn of each loop around."""
        return tuple(loop.turn for loop in self.loops)

    def is_several(self, ident: int) -> bool:
        """Whether the identity may stand for several objects, which one expression has made."""
        return self.made.get(ident, 0) > ident

    def is_older(self, ident: int) -> bool:
        """Whether a thing was there before the innermost turn, and is no item of it."""
        return max(self.made.get(ident, 0), self.consumed.get(ident, 0)) < self.began

    def shared_by(self, ident: int, name: str) -> Set[int]:
        """What all turns give the objects that they make, as the attribute `name`."""
        shared = self.loop_invariant_fields.get((ident, name))
        return self.loop_invariant_args.get(ident, frozenset()) if shared is None else shared
