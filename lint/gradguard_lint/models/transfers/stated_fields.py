"""Field declarations in classes: ``x = attr.ib(default=2)``, ``x: int = field(...)``."""

from __future__ import annotations

import ast

from gradguard_lint.domain.values import UNKNOWN, Atom, Frame, Thing, Value, of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args

KIND = "field"


def is_field(stated: Value) -> bool:
    """Whether the class attribute `stated` declares a field."""
    return any(stated.things(KIND))


def given_as(name: str, stated: Value | None) -> tuple[tuple[str, ...], bool]:
    """The keywords for a field, and whether it is positional, too."""
    words, placed = (name, name.lstrip("_")), True
    for thing in stated.things(KIND) if stated is not None else ():
        alias, init, by_name = map(thing.part, ("alias", "init", "kw_only"))
        if init is not None and init.constant is False:
            return (), False
        if alias is not None and isinstance(alias.constant, str):
            words = (name, alias.constant)
        placed = placed and (by_name is None or by_name.constant is False)
    return words, placed


def value_of(
    m: Machine, frame: Frame, node: ast.AST, name: str, stated: Value | None, given: Value | None
) -> Value | None:
    """The value of the field `name` with the argument `given`, for an object created at `node`."""
    if stated is None:
        return given
    if is_field(stated):
        written = ast.copy_location(ast.Name(name, ast.Load()), node)
        node = m.caches.field_nodes.setdefault((node, name), written)
    value = given or stated.map(lambda atom: _default(m, frame, node, atom))
    converters = [thing.part("converter") for thing in stated.things(KIND)]
    if any(converters):
        converter = converters[0] if len(stated.choices) == 1 else None
        return m.call(frame, node, converter or UNKNOWN, Args([value]))
    return value


def _default(m: Machine, frame: Frame, node: ast.AST, atom: Atom) -> Value:
    """The default of a field."""
    if not isinstance(atom, Thing) or atom.kind != KIND:
        return of(atom)
    made = atom.part("default_factory") or atom.part("factory")
    if made is not None:
        known = atom.part("takes_self") is None
        result: Value = m.call(frame, node, made, Args()) if known else UNKNOWN
        return result
    return (atom.part("default") or UNKNOWN).map(lambda it: _default(m, frame, node, it))
