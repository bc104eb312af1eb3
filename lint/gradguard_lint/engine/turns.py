"""The turns of loops: what each of them has anew, and what all of them are given."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    Atom,
    Bound,
    Const,
    Frame,
    Instance,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    of,
)
from gradguard_lint.engine.arguments import SOME
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend


def in_loop(m: Machine, frame: Frame) -> bool:
    """Whether what is evaluated in `frame` is evaluated again and again."""
    scope: Frame | None = frame
    around = 0
    while scope is not None and scope.function is frame.function:
        around += len(scope.loop_names)
        scope = scope.parent
    if not around and m.place.loop_depth <= 0:
        return False
    if around > sum(1 for function, _ in m.place.elements if function is frame.function):
        return True  # in a comprehension
    return not m.place.elements or not all(
        any(("value", key) in m.assumed for key in keys) for _, keys in m.place.elements
    )


def private_parts(
    frame: Frame, node: ast.Call, args: Args
) -> tuple[frozenset[int], frozenset[str]]:
    """Which of `args`, those of `node`, differ from one turn of the loops around it to the next."""
    names = turning(frame)
    if not names:
        return frozenset(), frozenset()
    positions = {index for index, item in enumerate(node.args) if _varies(item, names)}
    if positions and any(isinstance(item, ast.Starred) for item in node.args):
        positions = _placed(positions, node.args, args)
    function = node.func
    if isinstance(function, ast.Call) and any(_varies(item, names) for item in function.args):
        inner = function.args[0] if function.args else function
        if any(isinstance(part, ast.Name) and part.id in names for part in descend(inner)):
            positions.add(-1)
    keywords = {
        item.arg for item in node.keywords if item.arg is not None and _varies(item.value, names)
    }
    return frozenset(positions), frozenset(keywords)


def given_to_all(m: Machine, frame: Frame, node: ast.Call, args: Args, depth: int) -> set[int]:
    """The identities of what `node` gives in each turn of the loops around it, with what is in
    containers down to that depth."""
    positions, names = private_parts(frame, node, args)
    given = [value for at, value in enumerate(args.positional) if at not in positions]
    if all(item.arg is not None for item in node.keywords):
        given += [value for name, value in args.keywords.items() if name not in names]
    return set[int]().union(*(from_before(m, value, depth) for value in given))


def given_apart(frame: Frame, node: ast.Call, args: Args) -> set[Atom]:
    """The numbers, texts and unknown things that no other turn of the loops around gives to
    `node`."""
    positions, names = private_parts(frame, node, args)
    given = [value for at, value in enumerate(args.positional) if at in positions]
    given += [value for name, value in args.keywords.items() if name in names]
    return {atom for value in given for atom in value.atoms if isinstance(atom, (Const, Unknown))}


def from_before(m: Machine, value: Value, depth: int = 4) -> frozenset[int]:
    """The identities of what is in `value` and was there before this turn of the loop around."""
    return frozenset(
        atom.ident
        for atom in inner(value, depth)
        if isinstance(atom, (Instance, Tensor, Thing))
        and atom.ident > 0
        and max(m.facts.made_at.get(atom.ident, 0), m.facts.consumed_in_turn.get(atom.ident, 0))
        < m.place.turn_start
    )


def take(m: Machine, item: Value) -> None:
    """The turn that begins has what is in `item`, as no other of its loop has."""
    for atom in inner(item):
        if isinstance(atom, (Instance, Tensor, Thing)):
            m.facts.consumed_in_turn[atom.ident] = m.place.turn_start


def made_in_turn(m: Machine, value: Value) -> bool:
    """Whether all things in `value`, of which there are some, are others in each turn: what has no
    identity may be one for all."""
    if not m.place.turn_start:
        return False
    receivers = [of(atom.receiver) for atom in value.of(Bound)]
    value = join([value, *receivers]) if receivers else value
    things = [atom for atom in inner(value) if isinstance(atom, (Instance, Tensor, Thing))]
    if not things or not all(atom.ident > 0 for atom in things):
        return False
    return not from_before(m, value)


def _placed(written: set[int], nodes: list[ast.expr], args: Args) -> set[int]:
    """The places among `args` of what is `written` at these among `nodes`, of which some are
    unpacked: between the first of those and the last it is not told what comes from which."""
    stars = [index for index, item in enumerate(nodes) if isinstance(item, ast.Starred)]
    more = len(args.positional) - len(nodes)
    first, last = stars[0], stars[-1]
    if args.rest is not None:
        more, last = more + SOME, len(nodes) - 1
    places = {index if index < first else index + more for index in written}
    if any(first <= index <= last for index in written):
        places.update(range(first, last + more + 1))
    return places


def private_items(frame: Frame, node: ast.expr, count: int) -> frozenset[int]:
    """The same of the `count` items of what `node` makes."""
    names = turning(frame)
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == count:
        return frozenset(i for i, item in enumerate(node.elts) if names and _varies(item, names))
    return frozenset(range(count)) if names and _varies(node, names) else frozenset()


def turning(frame: Frame) -> frozenset[str]:
    """The names that the loops around bind anew in each turn."""
    names: frozenset[str] = frozenset()
    scope: Frame | None = frame
    while scope is not None and scope.function is frame.function:
        names = names.union(*scope.loop_names)
        scope = scope.parent
    return names


def _varies(item: ast.AST, names: frozenset[str]) -> bool:
    """Whether `item` is another from turn to turn, as it calls something or has one of `names`."""
    return any(
        isinstance(part, ast.Call) or (isinstance(part, ast.Name) and part.id in names)
        for part in descend(item)
    )
