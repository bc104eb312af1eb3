"""Running loops, and the objects that their iterations create and consume."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import Atom, Function, Site, Value
from pytest_gradguard.records import record


@record
class Loop:
    """A running loop.

    Attributes:
        function: the function around it.
        keys: the keys of its element; known ones identify the iteration.
        turn: the unique number of the current iteration.
    """

    site: Site
    function: Function | None
    keys: frozenset[Key]
    turn: int = 0


class Turns:
    """The position in running loops, and the objects of single iterations. A time is the newest
    identity then.

    Attributes:
        loops: the enclosing loops, innermost last, without comprehensions.
        depth: the number of enclosing loops and comprehensions.
        began: the start of the innermost iteration; 0: none.
        made: the last creation of each object: its own identity if it is created once.
        consumed: the iteration that consumed each object as its loop's item.
        loop_invariant_args: objects that all iterations pass to a constructor, by object.
        loop_invariant_fields: objects that all iterations set as an attribute, by object and name.
        per_turn_args: values that differ between iterations as constructor arguments, by object.
        rewriting: targets where running loops replace each item of a container.
        items: the item index of each enclosing unrolled loop or comprehension.
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

    def iterate_items(self, known: tuple[Value, ...]) -> Iterator[Value]:
        """Iterate over `known` items, recording the index."""
        around = self.items
        try:
            for number, item in enumerate(known):
                self.items = (*around, number)
                yield item
        finally:
            self.items = around

    def sites(self) -> tuple[Site, ...]:
        """The sites of the enclosing loops."""
        return tuple(loop.site for loop in self.loops)

    def numbers(self) -> tuple[int, ...]:
        """The iteration of each enclosing loop."""
        return tuple(loop.turn for loop in self.loops)

    def is_several(self, ident: int) -> bool:
        """Whether the identity may stand for several objects, created by one expression."""
        return self.made.get(ident, 0) > ident

    def is_older(self, ident: int) -> bool:
        """Whether an object existed before the innermost iteration, and isn't its item."""
        return max(self.made.get(ident, 0), self.consumed.get(ident, 0)) < self.began

    def shared_by(self, ident: int, name: str) -> Set[int]:
        """The objects that all iterations set as the attribute `name` of their objects."""
        shared = self.loop_invariant_fields.get((ident, name))
        return self.loop_invariant_args.get(ident, frozenset()) if shared is None else shared
