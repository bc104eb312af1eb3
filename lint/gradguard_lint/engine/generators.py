"""Generators: their bodies run where they are iterated, and as far as that."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradguard_lint.domain.conditions import NONE, Conditions, assume
from gradguard_lint.domain.shapes import items, sequence
from gradguard_lint.domain.state import State
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    External,
    Flow,
    Frame,
    Generator,
    Items,
    Method,
    Table,
    Value,
    constant,
    either,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.calls import marked_modes
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.resuming import enter, is_context, leave
from pytest_gradguard.records import replace

TAKEN = "<taken>"
"""The name under which a generator has how many items were taken of it."""

SOME, ALL = -1, -2
"""It is not known how many; and there are no more."""

KEPT = frozenset({"append", "appendleft", "add", "insert", "setdefault"})
"""What containers do with a generator without iterating it."""


ENTERING = frozenset({"enter_context", "enter_async_context"})
"""What enters a context that it is given."""


class _Place:
    """Where the machine is, apart from the state."""

    def __init__(self, m: Machine) -> None:
        self.chain, self.statement, self.raised = m.chain, m.statement, m.raised
        self.stack, self.depth = m.stack, m.loop_depth
        self.loops, self.turns, self.elements = m.loops, m.turns, m.elements

    def go(self, m: Machine) -> None:
        m.chain, m.statement, m.raised = self.chain, self.statement, self.raised
        m.stack, m.loop_depth = self.stack, self.depth
        m.loops, m.turns, m.elements = self.loops, self.turns, self.elements


class Before:
    """What was recorded up to here."""

    def __init__(self, m: Machine) -> None:
        self.effects, self.calls = len(m.program.effects), len(m.program.calls)
        self.in_line = len(m.program.in_line)
        self.recorded, self.past = dict(m.recorded), dict(m.state.past)
        self.worker = len(m.worker.effects) if m.worker is not None else 0

    def put_back(self, m: Machine) -> None:
        """Forget what was recorded since."""
        del m.program.effects[self.effects :], m.program.calls[self.calls :]
        del m.program.in_line[self.in_line :]
        m.recorded = self.recorded
        m.state.past = self.past
        if m.worker is not None:
            del m.worker.effects[self.worker :]


def run(
    m: Machine, frame: Frame, node: ast.AST, atom: Generator, each: Callable[[Value], None]
) -> Value:
    """Run the body of a generator from where it was left; what it returns.

    `each` is called with what every ``yield`` gives, as what iterates the generator.
    """
    function, inner = atom.function, atom.frame
    if isinstance(function, Flow):
        _flow(m, frame, function, each)
        return NOTHING
    code = function.node
    taken = (m.store.get((inner.ident, TAKEN)) or constant(0)).constant
    if taken == ALL or isinstance(code, ast.Lambda):
        return NOTHING
    left_out = m.is_deep_in(frame, function) or m.gives_up_in(frame, function)
    if left_out or inner.ident in m.givers:
        each(UNKNOWN)  # one that is being run stands for others that were made there
        return UNKNOWN
    again = taken if isinstance(taken, int) and taken > 0 else 0
    before = Before(m) if again else None
    outside, modes, assumed = _Place(m), m.modes, m.assumed.copy()
    message = f"iterates `{function.name}`"
    if is_context(atom):  # it is given to what is not seen
        name = f"`{function.name}`"
        message = f"{name} is called" if node is code else f"calls {name}"
    passed = 0

    def give(value: Value) -> None:
        nonlocal passed
        passed += 1
        if passed <= again:
            if passed == again and before is not None:
                before.put_back(m)  # that was done when these items were taken
            return
        m.store[inner.ident, TAKEN] = constant(SOME if inner.loop_names else passed)
        inside, own = _Place(m), m.modes
        outside.go(m)
        if function.marks:
            m.modes = modes
        each(value)
        inside.go(m)
        m.modes = own

    m.givers[inner.ident] = give
    m.modes = marked_modes(m, frame, node, function, modes)
    m.stack, m.raised = [*m.stack, code], [*m.raised]
    m.loops, m.turns, m.elements = [*m.loops], [*m.turns], [*m.elements]
    try:
        with m.called_from(frame, node, message):
            m.block(inner, code.body)
    finally:
        outside.go(m)
        del m.givers[inner.ident]
    left = m.outcomes(inner)
    del m.left[inner.ident]
    m.last_returns = (
        function.module,
        function.name,
        [(value, place) for value, place, _ in left.returns],
    )
    m.meet([*(state for _, _, state in left.returns), m.state])
    m.state.assumed, m.state.modes = assumed, modes
    if not m.dead:
        m.store[inner.ident, TAKEN] = constant(ALL)
    return join([value for value, _, _ in left.returns]) if left.returns else NOTHING


def _flow(m: Machine, frame: Frame, flow: Flow, each: Callable[[Value], None]) -> None:
    """Take what is left of `flow`; `each` goes on outside of it with every item."""
    if m.gives_up_in(frame):
        each(UNKNOWN)
        return
    outside = _Place(m)

    def give(value: Value) -> None:
        inside = _Place(m)
        outside.go(m)
        each(value)
        inside.go(m)

    m.raised = [*m.raised]
    m.loops, m.turns, m.elements = [*m.loops], [*m.turns], [*m.elements]
    try:
        flow.each(give)
    finally:
        outside.go(m)


def exhausted(m: Machine, frame: Frame, node: ast.AST, atom: Generator) -> Value:
    """A generator is iterated to its end: what it gives."""
    if isinstance(atom.function, Flow):
        return atom.function.whole()
    given: list[Value] = []
    taken = m.store.get((atom.frame.ident, TAKEN))
    if taken is not None and taken.constant == ALL:
        return items("generator", ())
    run(m, frame, node, atom, given.append)
    if m.dead:  # it has no end: what iterates it stops somewhere
        m.state = m.state.copy()
        m.state.dead = False
    return sequence(join(given), "generator")


def certain(m: Machine, atom: Generator) -> bool:
    """Whether it is known which item comes next."""
    if isinstance(atom.function, Flow):
        return all(certain(m, source) for source in atom.function.sources)
    taken = (m.store.get((atom.frame.ident, TAKEN)) or constant(0)).constant
    return isinstance(taken, int) and taken != SOME


def following(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    atom: Generator,
    default: Value | None = None,
    ended: list[State] | None = None,
) -> Value:
    """``next(generator)``; `ended` gets the state in which it has no more items."""
    given: list[tuple[Value, Conditions]] = []
    there: list[State] = []
    known = certain(m, atom)
    before = m.assumed.facts

    def stop(value: Value) -> None:
        given.append((value, m.assumed.facts - before))
        if known:
            there.append(m.leave())
        else:
            there.append(m.state.copy())

    run(m, frame, node, atom, stop)
    if default is None:
        if ended is not None:
            ended.append(m.state.copy())
        m.die()  # by StopIteration
    else:
        given.append((default, NONE))
    m.meet([*there, m.state])
    return either(given) if given else UNKNOWN


def method(m: Machine, frame: Frame, node: ast.AST, atom: Generator, name: str) -> Value:
    """A method of a generator."""
    if name in ("__enter__", "__aenter__"):
        return enter(m, frame, node, atom)
    if name in ("__exit__", "__aexit__"):
        leave(m, frame, node, atom, None)
        return NOTHING
    if name in ("send", "asend", "__next__", "__anext__"):
        return following(m, frame, node, atom, None)
    return of(atom) if name in ("__iter__", "__aiter__") else UNKNOWN


def iterated(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with what iterating it gives in place of a generator."""
    if not any(isinstance(choice.atom, Generator) for choice in value.choices):
        return value
    found = []
    for choice in value.choices:
        if not isinstance(choice.atom, Generator):
            found.append(Value((choice,)))
        elif not m.conflicts(choice.when):
            otherwise = m.state.copy() if choice.when else None
            assume(m.assumed, choice.when)
            found.append(guarded(exhausted(m, frame, node, choice.atom), choice.when))
            if otherwise is not None:
                m.meet([m.state, otherwise])
    return join(found) if found else UNKNOWN


def given_away(m: Machine, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Args:
    """The arguments of a call of what is not seen, which iterates the generators among them."""
    if not any(
        isinstance(choice.atom, Generator) for value in args.values() for choice in value.choices
    ):
        return args
    if isinstance(atom, External) and m.models.keeps(atom):
        return args
    if isinstance(atom, Method) and atom.name in ENTERING:
        return args
    if isinstance(atom, Method) and atom.name in KEPT and isinstance(atom.receiver, (Items, Table)):
        return args
    return replace(
        args,
        positional=[iterated(m, frame, node, value) for value in args.positional],
        keywords={name: iterated(m, frame, node, it) for name, it in args.keywords.items()},
        written=False,
    )
