"""Pickling of objects: which attributes are pickled, and restored in a worker."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradguard_lint.domain.shapes import ABSENT, as_received, map_contents
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Frame,
    Function,
    Instance,
    Items,
    Table,
    Value,
    constant,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.containers import whole, with_identity
from gradguard_lint.engine.machine import ARRIVED, Machine
from gradguard_lint.engine.ports import Args
from pytest_gradguard.records import replace


def state_of(m: Machine, atom: Instance) -> dict[str, Value] | None:
    """The pickled attributes of an object; None if they are unknown."""
    state = _pickled(m, atom)
    return None if state is None else _by_name(state)


def _pickled(m: Machine, atom: Instance) -> Value | None:
    """The pickled state of an object; None if it is unknown."""
    if any(m.find_in_class(atom.cls, name) is not None for name in ("__reduce__", "__reduce_ex__")):
        return None
    own = m.find_in_class(atom.cls, "__getstate__")
    if own is None:
        known = tuple(m.fields(atom.ident))
        return of(Table(known, ABSENT) if atom.cls.plain else Table(known, UNKNOWN, UNKNOWN))
    function = own.only
    if not isinstance(function, Function) or atom.cls.what:
        return None
    frame, node = function.frame, function.node
    before, raised, returns = m.state, m.place.raised, m.place.ended.returns
    m.state, m.place.raised = before.copy(), []
    try:
        return whole(m, m.call(frame, node, m.bind(frame, node, own, atom), Args()))
    finally:
        m.state, m.place.raised, m.place.ended.returns = before, raised, returns


def _by_name(state: Value) -> dict[str, Value] | None:
    """Attributes by name from a pickled `state`; None if that isn't a dict."""
    found: dict[str, list[Value]] = {}
    for choice in state.choices:
        if not isinstance(choice.atom, Table):
            return None
        for name, value in choice.atom.entries:
            found.setdefault(str(name), []).append(guarded(value, choice.when))
    return {name: join(values) for name, values in found.items()}


def pickling_themselves(m: Machine, sent: Iterable[Atom]) -> list[Instance]:
    """Objects in `sent` whose classes customise pickling."""
    return [
        atom
        for atom in dict.fromkeys(sent)
        if isinstance(atom, Instance) and m.pickles_itself(atom)
    ]


def sent_as(m: Machine, sent: list[Instance]) -> list[tuple[Instance, Value]]:
    """The known pickled states of such objects."""
    states = [(atom, _pickled(m, atom)) for atom in sent]
    return [(atom, state) for atom, state in states if state is not None]


def arrive(m: Machine, frame: Frame, node: ast.AST, pickled: list[tuple[Instance, Value]]) -> None:
    """Restore these objects in a worker from their pickled states, inner objects first."""
    for atom, state in reversed(pickled):
        own = m.find_in_class(atom.cls, "__setstate__")
        known = _by_name(state) if own is None else {}
        if known is None or (own is not None and not isinstance(own.only, Function)):
            continue
        if (atom.ident, ARRIVED) in m.store:
            continue
        for name, _ in list(m.fields(atom.ident)):
            if name not in known:
                m.store.drop((atom.ident, name))
        for name, value in known.items():
            m.set_field(atom.ident, name, value)
        m.store[atom.ident, ARRIVED] = constant(True)
        if own is not None:
            given = with_identity(m, node, state.map(lambda part: _unpickled(m, part)))
            m.call(frame, node, m.bind(frame, node, own, atom), Args([given]))


def _unpickled(m: Machine, atom: Atom) -> Value:
    """The state `atom` as it is received."""

    def here(value: Value) -> Value:
        return as_received(value, m.worker_ident)

    if isinstance(atom, (Items, Table)):
        return of(replace(map_contents(atom, here), ident=0))
    return here(of(atom))
