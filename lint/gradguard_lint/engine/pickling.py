"""What pickling takes along of an object, and what of it arrives in a worker."""

from __future__ import annotations

from collections.abc import Iterable

from gradguard_lint.domain.values import (
    Atom,
    Function,
    Instance,
    Table,
    Value,
    constant,
    guarded,
    join,
)
from gradguard_lint.engine.containers import whole
from gradguard_lint.engine.machine import ARRIVED, Machine
from gradguard_lint.engine.ports import Args


def state_of(m: Machine, atom: Instance) -> dict[str, Value] | None:
    """The attributes of an object that are pickled; None where it is not known which."""
    if any(m.find_in_class(atom.cls, name) is not None for name in ("__reduce__", "__reduce_ex__")):
        return None
    own = m.find_in_class(atom.cls, "__getstate__")
    if own is None:
        return dict(m.fields(atom.ident))
    function = own.only
    if not isinstance(function, Function) or atom.cls.what:
        return None
    frame, node = function.frame, function.node
    before, raised, returns = m.state, m.raised, m.last_returns
    m.state, m.raised = before.copy(), []
    try:
        state = whole(m, m.call(frame, node, m.bind(frame, node, own, atom), Args()))
    finally:
        m.state, m.raised, m.last_returns = before, raised, returns
    found: dict[str, list[Value]] = {}
    for choice in state.choices:
        if not isinstance(choice.atom, Table):
            return None
        for name, value in choice.atom.entries:
            found.setdefault(str(name), []).append(guarded(value, choice.when))
    return {name: join(values) for name, values in found.items()}


def arrive(m: Machine, sent: Iterable[Atom]) -> None:
    """The objects among what was `sent` have the attributes here that their classes let pickling
    take along."""
    for atom in dict.fromkeys(sent):
        if not isinstance(atom, Instance) or not m.pickles_itself(atom):
            continue
        state = None if m.find_in_class(atom.cls, "__setstate__") else state_of(m, atom)
        if state is None:
            continue
        for name, _ in list(m.fields(atom.ident)):
            if name not in state:
                m.store.drop((atom.ident, name))
        for name, value in state.items():
            m.set_field(atom.ident, name, value)
        m.store[atom.ident, ARRIVED] = constant(True)
