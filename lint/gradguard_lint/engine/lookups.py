"""Lookups with unknown keys: all items, each under the condition that its key matches."""

from __future__ import annotations

import ast
from collections.abc import Collection, Hashable

from gradguard_lint.domain.conditions import NONE, Conditions, plain_condition
from gradguard_lint.domain.questions import Key, is_question
from gradguard_lint.domain.unknowns import OWN
from gradguard_lint.domain.values import (
    COUNT,
    NUMBER,
    ONE,
    WIDTH,
    Atom,
    Const,
    Frame,
    Instance,
    Thing,
    Unknown,
    Value,
    guarded,
    join,
    unknown,
)
from gradguard_lint.engine.calls import rebind
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.truth import compare, object_key, truth_of


def lookup_unknown_key(
    m: Machine,
    frame: Frame,
    written: ast.expr | None,
    index: Value,
    held: Collection[tuple[Hashable, Value]],
    anything: Value,
    other: Value | None = None,
    *,
    closed: bool = True,
) -> Value:
    """The item at an unknown `index`.

    Args:
        written: the expression of `index`.
        held: the known keys and items.
        anything: the join of all items.
        other: the item of other keys; None if they raise.
        closed: whether there are no other keys.
    """
    if not held or len(held) > WIDTH or anything.is_nameless or index.only is None:
        return anything
    key = _identity(m, frame, written, index.only)
    if key is None:
        return anything
    asked = ((_asks_for(key, name), value) for name, value in held)
    picked = [guarded(value, when) for when, value in asked if when is not None]
    if other is not None:
        names = tuple(name for name, _ in held)
        when: Conditions = frozenset({(("among", key, names), False)} if closed else ())
        left = [truth for truth in (True, False) if truth not in names] if is_question(key) else []
        if closed and len(left) == 1:
            when = frozenset({plain_condition(key, left[0])})
        picked.append(guarded(other, when))
    return join(picked) if picked else anything


def _identity(m: Machine, frame: Frame, written: ast.expr | None, index: Atom) -> Key:
    """The key of `index`; None if it may vary."""
    key = index.key if isinstance(index, Unknown) else None
    if isinstance(index, Unknown) and index.is_nameless and written is not None:
        key = identify(m, frame, written)
    if isinstance(index, Instance) and not index.cls.plain:
        key = object_key(index)
    if key is not None:
        return None if isinstance(key, tuple) and key[0] == OWN else key
    return fresh_key(m) if isinstance(index, (Unknown, Thing)) else None


def fresh_key(m: Machine) -> Key:
    """A key for an unknown value evaluated here; None in comprehensions, which evaluate all
    iterations at once."""
    return None if m.place.turns.depth > len(m.place.turns.loops) else (ONE, m.new_ident())


def _asks_for(key: Key, name: Hashable) -> Conditions | None:
    """The condition that `key` is `name`; None if it can't be."""
    if is_question(key) and name in (False, True):
        return frozenset({plain_condition(key, bool(name))})
    asked = compare(ast.Eq(), Unknown(key), Const(name, type(name).__name__))
    if isinstance(asked, Unknown):
        return frozenset({plain_condition(asked.key, True)})
    return NONE if truth_of(asked) else None


def identify(m: Machine, frame: Frame, node: ast.expr) -> Key:
    """Give the unknown value of a name or attribute a key, so that it is one object or number each
    time it is read."""
    held: Value | None = None
    if isinstance(node, ast.Name):
        held = m.stored(frame.ident, node.id) if node.id not in frame.outer else None
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = m.lookup(frame, node.value.id)
        atom = owner[0].only if owner is not None else None
        held = m.read(atom.ident, node.attr) if isinstance(atom, Instance) else None
    if held is None or not isinstance(held.only, (Unknown, Thing)):
        return None
    if not held.is_nameless and held not in (NUMBER, COUNT):
        return None
    calls = (id(step.site.node) for step in m.place.chain[:-3])
    one = (ONE, m.ident_at(node, *m.place.turns.numbers(), *calls))
    key = one if held.is_nameless else ("number", *one)
    rebind(m, frame, node, unknown(key))
    return key
