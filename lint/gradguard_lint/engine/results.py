"""Results of tasks: where they are returned, and how they reach the parent."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.shapes import inner, items, map_contents
from gradguard_lint.domain.values import (
    Atom,
    Choice,
    Function,
    Instance,
    Items,
    Site,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    of,
)
from gradguard_lint.engine.machine import Machine
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.reading.source import Module


def as_data(m: Machine, value: Value, depth: int = 3, *, plain: bool = True) -> Value:
    """`value`, with named tuples (and if `plain`, plain objects) replaced by tuples of their
    contents."""
    if depth <= 0 or not any(isinstance(atom, (Instance, Items, Table)) for atom in value.atoms):
        return value

    def within(value: Value) -> Value:
        return as_data(m, value, depth - 1, plain=plain)

    def inside(atom: Atom) -> Value:
        if isinstance(atom, Instance) and (atom.cls.what == "tuple" or (plain and atom.cls.plain)):
            held = [within(item) for _, item in m.fields(atom.ident)]
            return items("tuple", held) if held and not m.pickles_itself(atom) else of(atom)
        return of(map_contents(atom, within) if isinstance(atom, (Items, Table)) else atom)

    return value.map(inside)


def ends_of(
    module: Module,
    name: str | None,
    returns: list[tuple[Value, ast.AST]],
    wrapped: Function | None,
    handed_back: list[tuple[Value, ast.AST]],
) -> list[tuple[Value, Site]]:
    """The return values of a task with their sites; those of the `wrapped` function if a wrapper
    passes them on."""
    ends = [(value, Site(module, node, name, node)) for value, node in returns]
    if wrapped is None:
        return ends
    origins = [
        (value, Site(wrapped.module, node, wrapped.name, node)) for value, node in handed_back
    ]
    return [end for own in ends for end in _origins_of_wrapper(own, origins)]


def _origins_of_wrapper(
    own: tuple[Value, Site], origins: list[tuple[Value, Site]]
) -> list[tuple[Value, Site]]:
    """The return value of a wrapper; or those of the wrapped function, if all tensors come from
    these."""
    given = _tensors(own[0])
    found = [end for end in origins if _tensors(end[0]) and _tensors(end[0]) <= given]
    passed = {tensor for value, _ in found for tensor in _tensors(value)}
    return found if given and passed == given else [own]


def _tensors(value: Value) -> set[Tensor]:
    return {atom for atom in inner(value) if isinstance(atom, Tensor)}


def sent_back(m: Machine, value: Value, call: ParallelCall) -> Value:
    """A process worker's result as the parent receives it: without graphs."""
    # A value may occur in many places; keep it alive, as its id is a key.
    known: dict[int, tuple[Atom, Atom]] = {}
    seen: set[int] = set()

    def received(value: Value) -> Value:
        return Value(tuple(Choice(changed(it.atom), it.when) for it in value.choices))

    def changed(atom: Atom) -> Atom:
        if id(atom) not in known:
            known[id(atom)] = (atom, change(atom))
        return known[id(atom)][1]

    def change(atom: Atom) -> Atom:
        if isinstance(atom, Tensor):
            grad = m.models.grad_after_pickling(atom)
            severed = atom.severed if grad == atom.grad else atom.severed | {call.ident}
            ident = m.ident_of(("sent back", call.ident, atom))
            m.program.sent_back[ident] = atom.ident
            return replace(atom, grad=grad, severed=severed, born=0, ident=ident)
        if isinstance(atom, (Items, Table)):
            return replace(map_contents(atom, received), ident=0)
        if isinstance(atom, (Thing, Instance)):
            returned: Atom = m.models.returned(m, atom, call, received, seen)
            return returned
        if isinstance(atom, Unknown):
            return Unknown(("result", call.ident))
        return atom

    return received(value)
