"""One object under several names: what changes it in place changes it for all of them."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import ABSENT
from gradguard_lint.domain.values import Atom, Frame, Items, Table, Tensor, Value, join, of
from gradguard_lint.engine.machine import Machine
from pytest_gradguard.records import replace

DEEP = 2
"""In containers within containers the object is found so far down."""


def changed_in_place(
    m: Machine, frame: Frame, target: ast.expr, held: Value, atom: Atom, new: Value
) -> None:
    """`atom`, which `target` stands for, is `new` from here on, whoever holds it.

    Args:
        held: all that `target` may stand for.

    The variable of a loop stands for each item in turn. Anything else is one object: where it may
    be another one, or one expression has made several, it is not told which of them changes.
    """
    if not isinstance(atom, Tensor) or atom.ident <= 0 or new == of(atom):
        return
    in_turn = isinstance(target, ast.Name) and any(target.id in it for it in frame.loop_names)
    if not in_turn and len(held.choices) > 1:
        return
    several = m.facts.made_at.get(atom.ident, 0) > atom.ident
    if several and not in_turn:
        return
    for place, value in m.store.held().items():
        if several and not _holds_items(value):
            continue
        changed = _with(value, atom, new, DEEP, several=several)
        if changed is not value:
            m.store[place] = changed


def _holds_items(value: Value) -> bool:
    return any(type(choice.atom) in (Items, Table) for choice in value.choices)


def _with(value: Value, old: Atom, new: Value, depth: int, *, several: bool) -> Value:
    """`value` with `new` for `old`; where that stands for `several` objects, in the items alone of
    which it is not told which is where."""

    def change(atom: Atom) -> Value:
        if atom == old:
            return new
        if not depth:
            return of(atom)
        if isinstance(atom, Items):
            element = _with(atom.element, old, new, depth - 1, several=several)
            if atom.items is None:
                if element is atom.element:
                    return of(atom)
                return of(replace(atom, element=element, ends=None))
            if several:
                return of(atom)
            known = tuple(_with(it, old, new, depth - 1, several=False) for it in atom.items)
            if all(one is other for one, other in zip(known, atom.items, strict=True)):
                return of(atom)
            return of(replace(atom, items=known, element=join(known)))
        if isinstance(atom, Table):
            rest = atom.rest
            rest = rest if rest == ABSENT else _with(rest, old, new, depth - 1, several=several)
            entries = atom.entries
            if not several:
                entries = tuple(
                    (key, _with(it, old, new, depth - 1, several=False)) for key, it in entries
                )
            same = rest is atom.rest and all(
                one is other for (_, one), (_, other) in zip(entries, atom.entries, strict=True)
            )
            return of(atom if same else replace(atom, entries=entries, rest=rest))
        return of(atom)

    changed = value.map(change)
    return value if changed == value else changed
