"""Objects that are reachable from a value."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import contents_of
from gradguard_lint.domain.values import (
    Atom,
    Bound,
    Class,
    Frame,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    Table,
    Thing,
    Value,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import free_names

MOST = 400
"""The limit of objects that are followed."""


def reached(m: Machine, value: Value) -> tuple[Value, ...]:
    """All values reachable from `value`, by its contents and by variables that its functions read.
    Empty beyond the limit."""
    seen: dict[Atom, None] = {}
    pending = [value]
    while pending:
        for atom in m.filtered(pending.pop()).atoms:
            if atom not in seen:
                seen[atom] = None
                pending += _next(m, atom)
        if len(seen) > MOST:
            return ()
    return tuple(map(of, seen))


def _next(m: Machine, atom: Atom) -> list[Value]:
    if isinstance(atom, (Items, Table)):
        return [*contents_of(atom)]
    if isinstance(atom, Partial):
        return [atom.function, *contents_of(atom)]
    if isinstance(atom, Thing):
        return [value for _, value in atom.parts]
    if isinstance(atom, Method):
        return [of(atom.receiver)]
    if isinstance(atom, Bound):
        return [of(atom.receiver), of(atom.function)]
    if isinstance(atom, Instance):
        return [of(atom.cls), *(value for _, value in m.fields(atom.ident))]
    if isinstance(atom, Class):
        held = [value for _, value in m.fields(atom.body.ident)]
        return [*map(of, atom.above), *held, *_read(m, atom.frame, atom.node)]
    if isinstance(atom, Function):
        return [*atom.defaults, *_read(m, atom.frame, atom.node)]
    return []


def _read(m: Machine, frame: Frame, node: ast.AST) -> list[Value]:
    found = (m.lookup(frame, name) for name in free_names(node))
    return [it[0] for it in found if it is not None]
