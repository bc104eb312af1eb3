"""Exits of blocks: jumps, exceptions, and what runs on each of them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from itertools import combinations

from gradguard_lint.domain.conditions import assume, consistent
from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.state import Error, Past, Raised, State, loosen, mark_uncertain
from gradguard_lint.domain.values import UNKNOWN, Frame, Instance, Value, of
from gradguard_lint.engine import caching
from gradguard_lint.engine.assignments import assign
from gradguard_lint.engine.branches import YES
from gradguard_lint.engine.context_generators import Rest
from gradguard_lint.engine.iteration import is_context
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import descend

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any


def do_Return(m: Machine, frame: Frame, node: ast.Return) -> None:
    value = m.eval(frame, node.value)
    if m.dead:
        return
    m.outcomes(frame).returns.append((value, node, m.leave()))


def do_Raise(m: Machine, frame: Frame, node: ast.Raise) -> None:
    if node.exc is not None:
        m.eval(frame, node.exc)
    if m.dead:
        return
    made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    m.leave_by(_builtin(m, frame, made) if made is not None else None)


def _builtin(m: Machine, frame: Frame, node: ast.expr) -> type[BaseException] | None:
    """The built-in exception that `node` names."""
    if not isinstance(node, ast.Name) or m.facts.star_imports.get(-frame.root.ident):
        return None
    found = getattr(builtins, node.id, None) if m.lookup(frame, node.id) is None else None
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    return found if is_error else None


def _catches(m: Machine, frame: Frame, handler: ast.ExceptHandler, error: Error) -> bool | None:
    """Whether `handler` catches the exception; None if that is unknown."""
    if handler.type is None:
        return True
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    named = [_builtin(m, frame, part) for part in parts]
    if error is not None and any(it is not None and issubclass(error, it) for it in named):
        return True
    return None if error is None or None in named else False


FEW = 16
"""The most raises in one body whose states are kept separate."""


def do_Break(m: Machine, frame: Frame, node: ast.Break) -> None:
    state = m.leave()
    loops = m.outcomes(frame).loops
    if loops:
        loops[-1].breaks.append(state)


def do_Continue(m: Machine, frame: Frame, node: ast.Continue) -> None:
    state = m.leave()
    loops = m.outcomes(frame).loops
    if loops:
        loops[-1].continues.append(state)


def do_Try(m: Machine, frame: Frame, node: ast.Try) -> None:
    before = m.state.copy()
    exits = _exits(m, frame)
    guarded = m.place.guarded_import
    stops = m.place.suspended.yields.get(frame.ident)
    m.place.guarded_import = guarded or any(_catches_imports(item) for item in node.handlers)
    raised: list[Raised] = []
    if node.handlers:
        m.place.raised.append(raised)
    missing = ("missing", id(node)) if _tries_imports(node) else None
    if missing is not None:
        m.assumed[missing] = False
    last = _last(node.body) if node.handlers else None
    handlers = [] if _reads_existing_attribute(m, frame, node.body) else node.handlers
    if last is not None:
        m.place.ending_assignments[last] = None
    try:
        m.block(frame, node.body)
    finally:
        if node.handlers:
            m.place.raised.pop()
        bound_nothing = m.place.ending_assignments.pop(last, None) if last is not None else None
    if m.dead and m.place.suspended.yields.get(frame.ident) != stops:  # suspended at a `yield`
        m.place.guarded_import = guarded
        return
    after = bound_nothing or m.state.copy()
    after.dead = False
    m.block(frame, node.orelse)
    ends = [m.state]
    passed = raised
    for handler in handlers:
        caught = [_catches(m, frame, handler, error) for error, _ in raised]
        pairs = list(zip(raised, caught, strict=True))
        caught_here = [state for (_, state), here in pairs if here is not False]
        passes_on = isinstance(handler.body[-1], ast.Raise)
        _catch(m, before, [before, after], caught_here, split_by_value=0 if passes_on else FEW)
        raised = [one for one, here in pairs if not here]
        passed = [one for one in passed if (one, False) in pairs]
        if missing is not None:
            m.assumed[missing] = True
        if handler.type is not None:
            m.eval(frame, handler.type)
        if handler.name:
            m.store[frame.ident, handler.name] = UNKNOWN
        m.block(frame, handler.body)
        ends.append(m.state)
    m.place.guarded_import = guarded
    if m.place.raised:
        m.place.raised[-1] += passed
    left = node.finalbody and _leave(m, exits, lambda _: m.block(frame, node.finalbody))
    if any(not state.dead for state in ends):
        m.meet(ends)
        if node.finalbody or any(not state.dead for state in ends[1:]):
            mark_uncertain(m.store, before.store.mark())
        m.block(frame, node.finalbody)
        return
    m.state = after
    if not left:
        m.block(frame, node.finalbody)
    m.die()


def _reads_existing_attribute(m: Machine, frame: Frame, body: list[ast.stmt]) -> bool:
    """Whether `body` only reads an attribute that certainly exists: nothing is raised."""
    taken = body[0].value if isinstance(body[0], (ast.Return, ast.Assign, ast.Expr)) else None
    if (
        len(body) > 1
        or not isinstance(taken, ast.Attribute)
        or not isinstance(taken.value, ast.Name)
    ):
        return False
    owner = m.eval(frame, taken.value).only
    return isinstance(owner, Instance) and caching.has_set_attribute(m, owner, taken.attr) == YES


def _last(body: list[ast.stmt]) -> ast.stmt | None:
    """The assignment at the end of `body`, if there is one."""
    end = body[-1]
    if isinstance(end, (ast.With, ast.AsyncWith)):
        return _last(end.body)
    return end if isinstance(end, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else None


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {item.id for item in descend(handler.type) if isinstance(item, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"})


def _tries_imports(node: ast.Try) -> bool:
    """Whether only the installation determines which branch runs."""
    return any(map(_catches_imports, node.handlers)) and any(
        isinstance(part, (ast.Import, ast.ImportFrom)) for part in node.body
    )


def _catch(
    m: Machine, before: State, around: list[State], raised: list[State], split_by_value: int = FEW
) -> None:
    """Continue in a handler, after a body that began `before`.

    An exception is raised with the state at a known raise, or before or after the body (`around`)
    if anything in it may raise. Effects of the body are certain only at known raises. At most
    `split_by_value` of these are joined precisely; differences of others become unknown.
    """
    certain: Past = {}
    mark = before.store.mark()
    for state in raised:
        for place in state.store.since(mark):
            if place[0] in m.facts.ended_frames:
                state.store.forget(place)
        there = state.assumed.facts - before.assumed.facts
        for event, when in state.past.items():
            when = when | there
            certain[event] = certain[event] & when if event in certain else when
    m.meet([*around, *raised[:split_by_value]])
    m.state = m.state.copy()
    mark_uncertain(m.store, before.store.mark())
    loosen(m.state.store, (state.store for state in raised[split_by_value:]))
    m.state.past = {**certain, **before.past}
    m.state.assumed = before.assumed.copy()
    m.state.modes = before.modes


Exit = tuple[Value, ast.AST, State] | Raised | State


def _exits(m: Machine, frame: Frame) -> list[tuple[list[Any], int]]:
    """The exits of a block beyond its end, with the number already taken."""
    left = m.outcomes(frame)
    ways: list[list[Any]] = [left.returns]
    if left.loops:
        ways += (left.loops[-1].breaks, left.loops[-1].continues)
    ways += m.place.raised[-1:]
    return [(way, len(way)) for way in ways]


def _leave(
    m: Machine, exits: list[tuple[list[Any], int]], last: Callable[[str | None], None]
) -> bool:
    """Run `last` on each exit taken since; whether there is one.

    Its argument is the exception: None for none, "" if it is unknown.
    """
    here = m.state
    taken: list[tuple[list[Any], list[Exit]]] = [(way, way[known:]) for way, known in exits]
    for way, known in exits:
        del way[known:]
    for way, ends in taken:
        for end in ends:
            m.state = end[-1] if isinstance(end, tuple) else end
            last(_raised(end))
            if not m.dead:  # otherwise `last` leaves by itself
                way.append((*end[:-1], m.state) if isinstance(end, tuple) else m.state)
    m.state = here
    return any(ends for _, ends in taken)


def _raised(end: Exit) -> str | None:
    """The name of the exception of this exit: None for none, "" if it is unknown."""
    if not isinstance(end, tuple) or len(end) == 3:
        return None
    return "" if end[0] is None else end[0].__name__


def do_With(m: Machine, frame: Frame, node: ast.With | ast.AsyncWith) -> None:
    outside = m.modes
    value = m.filtered(_context(m, frame, node.items[0].context_expr))
    choices = value.choices
    if not 1 < len(choices) <= SEVERAL or any(
        consistent(one.when, other.when) for one, other in combinations(choices, 2)
    ):
        _with(m, frame, node, value, outside)
        return
    before, ends = m.state, []
    for choice in choices:  # the block runs in one of them
        m.state = before.copy()
        assume(m.assumed, choice.when)
        _with(m, frame, node, of(choice.atom), outside)
        ends.append(m.state)
    m.meet(ends)


SEVERAL = 3
"""The most alternatives of a context manager for which the block runs separately."""


def _with(
    m: Machine, frame: Frame, node: ast.With | ast.AsyncWith, first: Value, outside: Modes
) -> None:
    """Run a ``with`` statement whose `first` context was evaluated.

    `outside` are the modes before that.
    """
    exits = _exits(m, frame)
    entered = []
    for item in node.items:
        value = first
        if item is not node.items[0]:
            value = _context(m, frame, item.context_expr)
        bound = m.models.enter_context(m, frame, item.context_expr, value)
        entered.append(value)
        if item.optional_vars is not None:
            assign(m, frame, item.optional_vars, bound)
    if frame.ident in m.place.yield_receivers:
        m.place.suspended.entered[frame.ident, node] = entered, outside
    _inside(m, frame, node, entered, outside, exits)


def rest_of_with(m: Machine, frame: Frame, node: Rest) -> None:
    _inside(m, frame, node, *m.place.suspended.entered[frame.ident, node.of], _exits(m, frame))


def _context(m: Machine, frame: Frame, node: ast.expr) -> Value:
    """The context manager that a ``with`` statement enters."""
    value = m.eval(frame, node)
    return value if any(map(is_context, value.atoms)) else m.iterated(frame, node, value)


def _inside(
    m: Machine,
    frame: Frame,
    node: ast.With | ast.AsyncWith,
    entered: list[Value],
    outside: Modes,
    exits: list[tuple[list[Any], int]],
) -> None:
    """Run the block of a ``with`` statement, and exit its contexts on each exit."""

    def leave(raised: str | None = None) -> None:
        for value in reversed(entered):
            m.models.exit_context(m, frame, node, value, raised)
        m.modes = outside
        for value in reversed(entered):
            m.models.put_back(m, value)

    if not any(m.models.swallows(m, value) for value in entered):
        m.block(frame, node.body)
        _leave(m, exits, leave)
        leave()
        return
    before = m.state.copy()
    raised: list[Raised] = []
    m.place.raised.append(raised)
    try:
        m.block(frame, node.body)
    finally:
        m.place.raised.pop()
    _leave(m, exits, leave)
    end, states = m.state, [state for _, state in raised]
    if end.dead:  # code after it is reached only by an exception
        after = end.copy()
        after.dead = False
        _catch(m, before, [before, after], states)
    else:
        if states:
            _catch(m, before, [], states)
            m.meet([end, m.state])
        mark_uncertain(m.store, before.store.mark())
    leave()
