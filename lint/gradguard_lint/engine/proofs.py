"""Proofs: evidence about unknown values from how they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from gradguard_lint.domain.evidence import MADE, is_of_a_task
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import as_received, result_call
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Bound,
    Choice,
    Class,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    is_number,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.words import words
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.evidence import Kind

OTHER_SOURCE = frozenset({None})
"""Another object may have the graph."""

_PURE = words("abs list max min next reversed sorted sum tuple zip")
"""Built-in functions that add nothing to the graph of their arguments."""


def as_proved(m: Machine, value: Value) -> Value:
    """`value`, with proved unknowns replaced by what they are proved to be."""
    proved = m.facts.evidence.proved
    for choice in value.choices if proved else ():
        atom = choice.atom
        if type(atom) is Unknown and atom.subject in proved:
            return value.map(lambda atom: _as_proved(m, atom))
    return value


def _as_proved(m: Machine, atom: Atom) -> Value:
    if not isinstance(atom, Unknown) or (proved := m.facts.evidence.of(atom.subject)) is None:
        return of(atom)
    kind, when = proved
    born = m.worker_ident if is_of_a_task(atom.subject) else 0
    shown = m.models.proved(m, atom.subject, kind, born)
    if m.in_process_worker and not born:
        shown = as_received(of(shown), m.worker_ident).choices[0].atom
    if not when:
        return of(shown)
    other = frozenset((key, not truth) for key, truth in when) if len(when) == 1 else frozenset()
    return Value((Choice(shown, when), Choice(atom, other)))


def identity_at(m: Machine, node: ast.AST) -> Key:
    """The evidence key of the result of `node` here."""
    calls = tuple(id(step.site.node) for step in m.place.chain[-3:])
    task = 0 if m.place.worker is None else id(m.place.worker.task.site.node)
    return (MADE, id(node), calls, task)


def identified(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    value: Value,
    operands: Sequence[Value] = (),
    call: tuple[Value, Args] | None = None,
) -> Value:
    """The result `value` of the expression `node`, with an identity if it is unknown.

    Args:
        operands: the operands of an operator.
        call: the function called, and the arguments.
    """
    only = value.choices[0].atom if len(value.choices) == 1 else None
    if not isinstance(only, Unknown) or frame.module.is_stub:
        return value
    evidence = m.facts.evidence
    if only.identity is None and only.sent is None and result_call(only) is None:
        only = replace(only, identity=identity_at(m, node))
        value = Value((Choice(only, value.choices[0].when),))
        function, args = call or (None, None)
        given = tuple(args.values()) if args is not None else operands
        evidence.operands[only.identity] = (function, given)
    if call is not None and _is_given_parameters(call[1]):
        prove(m, value, "is-given-parameters")
    if call is not None and (
        only.subject in evidence.proved or only.subject in evidence.with_graph
    ):
        computed = m.models.computed(m, frame, node, only.subject, *call)
        value = computed if computed is not None else value
    return as_proved(m, value)


def _is_given_parameters(args: Args) -> bool:
    only = args.positional[0].only if args.positional else None
    if not isinstance(only, Items):
        return False
    return any(atom.grad == "parameter" for atom in only.element.tensors())


def _sources_of_result(
    m: Machine, function: Value | None, values: Iterable[Value]
) -> frozenset[Key]:
    """The unknown values that may provide the graph of the result of `function` (None: an
    operator)."""
    if function is None:
        return sources_of(values)
    only = function.only
    if isinstance(only, External) and only.name.rpartition(".")[::2] in _BUILTIN:
        return sources_of(values)
    owner = _computed_from(m, only.subject) if isinstance(only, Unknown) else None
    return OTHER_SOURCE if owner is None else frozenset({owner}).union(sources_of(values))


def _computed_from(m: Machine, subject: Key) -> Key:
    """The unknown value of which `subject` is a view or a method that computes from it; or None."""
    if isinstance(subject, tuple) and subject[0] == "attr" and m.models.computes(subject[2]):
        owner: Key = subject[1]
        return owner
    return None


_BUILTIN = frozenset(("builtins", name) for name in _PURE)


def sources_of(values: Iterable[Value], depth: int = 2) -> frozenset[Key]:
    """The unknown values in `values` that may have a graph; None is among them if something else
    may."""
    found: set[Key] = set()
    for value in values:
        for choice in value.choices:
            atom = choice.atom
            while isinstance(atom, Method):
                atom = atom.receiver
            if isinstance(atom, Unknown):
                call = result_call(atom)
                if call is not None:
                    found.add(("result", call))
                elif not is_number(atom):
                    found.add(atom.subject)
            elif isinstance(atom, Tensor):
                if atom.tracked or (atom.grad == "unknown" and not (atom.behind or atom.maybe)):
                    found.add(None)
                elif atom.behind:
                    found |= atom.behind
                elif atom.grad == "unknown":
                    found.update(("result", call) for call in atom.maybe)
            elif isinstance(atom, Items) and depth:
                parts = atom.items if atom.items is not None else (atom.element,)
                found |= sources_of(parts, depth - 1)
            elif isinstance(atom, Table) and depth:
                found |= sources_of((*(it for _, it in atom.entries), atom.rest), depth - 1)
            elif isinstance(atom, _HOLDING) and getattr(atom, "kind", "") not in _PLAIN:
                found.add(None)
    return frozenset(found)


_HOLDING = (Bound, Class, Function, Instance, Items, Partial, Table, Thing)
"""Atoms that may have a graph, but aren't searched here."""

_PLAIN = frozenset({"device", "loss", "number"})
"""Kinds of things without a graph."""


def prove(m: Machine, value: Value, kind: Kind) -> None:
    """Record that the program continues only if `value`, or each item, is of that `kind`."""
    only = value.only
    if isinstance(only, Items):
        for part in only.items if only.items is not None else (only.element,):
            prove(m, part, kind)
    elif isinstance(only, Unknown) and only.subject is not None:
        m.facts.evidence.prove(only.subject, kind, m.assumed.facts)


def prove_graph(m: Machine, value: Value) -> None:
    """Record that the program continues only if `value` has a graph. If it is computed from one
    unknown value that alone can have a graph, so has that."""
    waiting, seen = sources_of([value]), set[Key]()
    while len(waiting) == 1:
        (subject,) = waiting
        if subject is None or subject in seen:
            return
        seen.add(subject)
        call = result_call(Unknown(subject))
        if call is not None:
            _prove_result(m, call)
            return
        m.facts.evidence.prove(subject, "graph", m.assumed.facts)
        owner = _computed_from(m, subject)
        if owner is not None:
            waiting = frozenset({owner})
        else:
            function, operands = m.facts.evidence.operands.get(subject, (UNKNOWN, ()))
            waiting = _sources_of_result(m, function, operands)


def _prove_result(m: Machine, ident: int) -> None:
    """Record that a result of the parallel call `ident` has a graph; if its tasks have only one
    ``return``, so has the value there."""
    for call in m.program.calls:
        if call.ident == ident:
            ends = [value for task in call.tasks for value, _ in task.returns]
            if len(ends) == 1:
                prove_graph(m, ends[0])
