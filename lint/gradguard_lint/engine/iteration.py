"""Iteration: running suspended generator bodies, and sequences.

Generator functions, generator expressions, ``map`` and the like run only when iterated. `run`
resumes one and calls the consumer's continuation with each item; loops, comprehensions, ``yield
from``, ``next`` and context managers are its users.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.shapes import items, sequence
from gradguard_lint.domain.state import State
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Const,
    External,
    Flow,
    Frame,
    Function,
    Generator,
    Instance,
    Items,
    Method,
    Table,
    Thing,
    Value,
    constant,
    either,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.branches import run_alternatives
from gradguard_lint.engine.calls import enter_code, marked_modes
from gradguard_lint.engine.fields import parts_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.run_parts import Position
from pytest_gradguard.records import replace

CONSUMED = "<consumed>"
"""Store key: the number of items consumed, and the line of the last ``yield``."""

SOME, ALL = -1, -2
"""An unknown number of items, or all of them, were consumed."""

STORING = frozenset({"append", "appendleft", "add", "insert", "setdefault"})
"""Methods of containers that store a generator without iterating it."""

ENTERING = frozenset({"enter_context", "enter_async_context"})
"""Methods that enter the context manager that they are called with."""


class Checkpoint:
    """A checkpoint of the record, to discard what is recorded after it."""

    def __init__(self, m: Machine) -> None:
        self.effects, self.calls = len(m.program.effects), len(m.program.calls)
        self.in_line = len(m.program.in_line)
        self.recorded, self.past = dict(m.facts.recorded), dict(m.state.past)
        self.worker = len(m.place.worker.effects) if m.place.worker is not None else 0

    def put_back(self, m: Machine) -> None:
        """Discard what was recorded since."""
        del m.program.effects[self.effects :], m.program.calls[self.calls :]
        del m.program.in_line[self.in_line :]
        m.facts.recorded = self.recorded
        m.state.past = self.past
        if m.place.worker is not None:
            del m.place.worker.effects[self.worker :]


# -- running a suspended body -------------------------------------------------------------------


def consumed(m: Machine, frame: Frame) -> int:
    """The number of consumed items of the generator with that `frame`."""
    held = m.store.get((frame.ident, CONSUMED))
    if held is None:
        return 0
    numbers = {_count(atom)[0] for atom in held.atoms}
    return numbers.pop() if len(numbers) == 1 else SOME


def set_consumed(m: Machine, frame: Frame, number: int) -> None:
    """Record the number of consumed items, at this statement."""
    m.store[frame.ident, CONSUMED] = constant((number, getattr(m.place.statement, "lineno", 0)))


def lines_of_yield(m: Machine, frame: Frame) -> list[tuple[int, Conditions]]:
    """The lines at which a generator is suspended, with conditions."""
    held = m.read(frame.ident, CONSUMED)
    choices = held.choices if held is not None else ()
    return [(_count(it.atom)[1], it.when) for it in choices]


def _count(atom: Atom) -> tuple[int, int]:
    value = atom.value if isinstance(atom, Const) else None
    return value if isinstance(value, tuple) else (SOME, 0)


def is_next_known(m: Machine, atom: Generator) -> bool:
    """Whether it is known which item is next."""
    if isinstance(atom.function, Flow):
        return all(is_next_known(m, source) for source in atom.function.sources)
    return consumed(m, atom.frame) != SOME


def is_context(atom: Atom) -> bool:
    """Whether `atom` is the generator of a context manager, which is not iterated."""
    function = atom.function if isinstance(atom, Generator) else None
    return isinstance(function, Function) and "context" in function.marks


def may_run(m: Machine, frame: Frame, atom: Generator) -> bool:
    """Whether a body may run: not recursively, as one frame stands for all its generators."""
    function = atom.function
    if isinstance(function, Flow):
        return not m.exceeds_budget_in(frame)
    if m.exceeds_depth_in(frame, function) or m.exceeds_budget_in(frame, function):
        return False
    return atom.frame.ident not in m.place.yield_receivers


def run(
    m: Machine, frame: Frame, node: ast.AST, atom: Generator, each: Callable[[Value], None]
) -> Value:
    """Resume a generator; its return value.

    `each` is called with every item, at the position of the code that iterates it.
    """
    function, inner = atom.function, atom.frame
    sources = function.sources if isinstance(function, Flow) else ()
    counts = not sources  # otherwise the sources count
    begun = modes = m.modes
    before = consumed(m, inner) if counts else 0
    if before == ALL:
        return NOTHING
    if not may_run(m, frame, atom):
        each(UNKNOWN)
        return UNKNOWN
    recorded = Checkpoint(m) if before > 0 and isinstance(function, Function) else None
    outside, assumed = Position(m.place), m.assumed.copy()
    passed = 0

    def give(value: Value) -> None:
        nonlocal passed
        passed += 1
        if passed <= before:
            if passed == before and recorded is not None:
                recorded.put_back(m)  # recorded already when these were consumed
            return
        if counts:
            set_consumed(m, inner, SOME if inner.loop_names else passed)
        inside, own = Position(m.place), m.modes
        outside.restore(m.place)
        if begun is not modes:
            m.modes = modes
        each(value)
        inside.restore(m.place)
        m.modes = own

    returned = NOTHING
    if isinstance(function, Flow):
        _fork(m)
        try:
            function.each(give)
        finally:
            outside.restore(m.place)
    else:
        message = f"iterates `{function.name}`"
        if is_context(atom):  # it is passed to unknown code
            is_called = node is function.node
            message = f"`{function.name}` is called" if is_called else f"calls `{function.name}`"
        m.modes = begun = marked_modes(m, frame, node, function, modes)
        run_body(m, frame, node, atom, body_of(function.node), give, message)
        left = m.place.exits.pop(inner.ident)
        returns = [(value, place) for value, place, _ in left.returns]
        m.place.ended.returns = (function.module, function.name, returns)
        m.meet([*(state for _, _, state in left.returns), m.state])
        m.state.assumed, m.state.modes = assumed, modes
        returned = join([value for value, _ in returns]) if returns else NOTHING
    if counts and not m.dead:
        set_consumed(m, inner, ALL)
    return returned


def _fork(m: Machine) -> None:
    """Copy the lists that a suspended body may leave modified."""
    m.place.stack, m.place.raised = [*m.place.stack], [*m.place.raised]


def run_body(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    atom: Generator,
    body: Sequence[ast.stmt],
    give: Callable[[Value], None],
    message: str,
) -> None:
    """Run statements of a generator function, and call `give` for each ``yield``."""
    function, inner = atom.function, atom.frame
    assert isinstance(function, Function)
    outside = Position(m.place)
    _fork(m)
    if not function.module.is_stub:
        m.place.stack.append(function.node)
    frame, node = m.in_program(frame, node)
    enter_code(m, frame, node, function, Args())
    m.place.yield_receivers[inner.ident] = give
    m.outcomes(inner)
    try:
        with m.called_from(frame, node, "" if function.module.is_stub else message):
            m.block(inner, body)
    finally:
        outside.restore(m.place)
        del m.place.yield_receivers[inner.ident]


def body_of(code: ast.AST) -> list[ast.stmt]:
    """The statements of a function; none for lambdas."""
    body = getattr(code, "body", None)
    return body if isinstance(body, list) else []


def suspend(m: Machine, atom: Generator) -> State:
    """Suspend a generator at a ``yield``; the state in which it resumes."""
    state, ident = m.state, atom.frame.ident
    m.state = state.copy()
    m.die()
    m.place.suspended.yields[ident] = m.place.suspended.yields.get(ident, 0) + 1
    return state


# -- consuming one item, or all -----------------------------------------------------------------


def remaining_items(m: Machine, frame: Frame, node: ast.AST, atom: Generator) -> Value:
    """The sequence of all remaining items of a generator."""
    if consumed(m, atom.frame) == ALL:
        return items("generator", ())
    if isinstance(atom.function, Flow):
        return atom.function.whole()
    given: list[Value] = []
    run(m, frame, node, atom, given.append)
    if m.dead:  # infinite: its consumer stops it
        m.state = m.state.copy()
        m.state.dead = False
    return sequence(join(given), "generator")


def next_item(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    atom: Generator,
    default: Value | None = None,
    ended: list[State] | None = None,
) -> Value:
    """``next(generator)``; `ended` gets the state of exhaustion."""
    given: list[tuple[Value, Conditions]] = []
    there: list[State] = []
    known = is_next_known(m, atom)
    before = m.assumed.facts

    def stop(value: Value) -> None:
        given.append((value, m.assumed.facts - before))
        there.append(suspend(m, atom) if known else m.state.copy())

    run(m, frame, node, atom, stop)
    if default is None:
        if ended is not None:
            ended.append(m.state.copy())
        m.die()  # StopIteration
    else:
        given.append((default, NONE))
    m.meet([*there, m.state])
    return either(given) if given else UNKNOWN


def is_lazy(values: Iterable[Value]) -> bool:
    """Whether iterating any of `values` runs code."""
    return any(isinstance(choice.atom, Generator) for value in values for choice in value.choices)


def exhaust_generators(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with generators replaced by the sequences of their items."""
    if not is_lazy((value,)):
        return value

    def sequence_of(atom: Atom) -> Value:
        return remaining_items(m, frame, node, atom) if isinstance(atom, Generator) else of(atom)

    return run_alternatives(m, m.filtered(value).choices, sequence_of)


def exhaust_arguments(m: Machine, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Args:
    """Arguments of a call of unknown code, which iterates generators."""
    if not is_lazy(args.values()) or (isinstance(atom, External) and m.models.keeps(atom)):
        return args
    if isinstance(atom, Method) and (
        atom.name in ENTERING
        or (atom.name in STORING and isinstance(atom.receiver, (Items, Table)))
    ):
        return args
    return replace(
        args,
        positional=[exhaust_generators(m, frame, node, value) for value in args.positional],
        keywords={
            name: exhaust_generators(m, frame, node, it) for name, it in args.keywords.items()
        },
        written=False,
    )


# -- objects that are iterated ------------------------------------------------------------------


def iterated(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with objects and generators replaced by sequences of their items."""
    return m.iterated(frame, node, iterated_object(m, frame, node, value))


_ITERATED = (Instance, Method, Thing)
"""Atoms that models may know how to iterate."""


def iterated_object(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with objects replaced by what iterating them yields."""
    if not any(isinstance(choice.atom, _ITERATED) for choice in value.choices):
        return value
    value = m.models.iterated(m, frame, node, value)
    return value.map(lambda atom: _iterated_atom(m, frame, node, atom))


def _iterated_atom(m: Machine, frame: Frame, node: ast.AST, atom: Atom) -> Value:
    def given(receiver: Atom, name: str, *args: Value) -> Value | None:
        found = m.find_in_class(receiver.cls, name) if isinstance(receiver, Instance) else None
        if found is None:
            return None
        return m.call(frame, node, m.bind(frame, node, found, receiver), Args(list(args)))

    if isinstance(atom, (Method, Thing)):
        return m.models.parts_of(m, atom) or of(atom)
    if not isinstance(atom, Instance):
        return of(atom)
    if atom.cls.what == "tuple":
        return items("tuple", parts_of(m, atom))
    iterator = given(atom, "__iter__") or given(atom, "__aiter__") or m.models.parts_of(m, atom)
    iterator = iterator or of(atom)

    def step(part: Atom) -> Value:
        if not isinstance(part, Instance):
            return of(part)
        number = unknown(("int", id(node)))
        element = (
            given(part, "__next__")
            or given(part, "__anext__")
            or (given(part, "__getitem__", number) if part == atom else None)
        )
        return sequence(element, "generator") if element is not None else of(part)

    return iterator.map(step)
