"""Context managers that are written as generators: entering one runs it up to its ``yield``, and
leaving it runs the rest."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import Assumed, assume, lasting
from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.state import Raised, State
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Frame,
    Function,
    Generator,
    Value,
    constant,
    join,
    of,
)
from gradguard_lint.engine.calls import marked_modes
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import TRIES
from pytest_gradguard.records import replace

STOPPED = "<stopped>"
"""The name under which a generator has the line of the ``yield`` where it stands."""


class Rest(ast.With):
    """What is left of the block of a ``with`` statement, whose contexts were entered before."""

    of: ast.AST


def is_context(atom: Atom) -> bool:
    """Whether `atom` is for a ``with`` statement to enter, and nothing to iterate."""
    function = atom.function if isinstance(atom, Generator) else None
    return isinstance(function, Function) and "context" in function.marks


def enter(m: Machine, frame: Frame, node: ast.AST, atom: Generator) -> Value:
    """Run the generator up to its ``yield``: what that gives, in the modes that are in force
    there."""
    function, inner = atom.function, atom.frame
    m.store.drop((inner.ident, STOPPED))
    if not isinstance(function, Function) or not _may_run(m, frame, function, inner):
        return UNKNOWN
    given: list[Value] = []
    there: list[State] = []

    def stop(value: Value) -> None:
        given.append(value)
        m.store[inner.ident, STOPPED] = constant(getattr(m.statement, "lineno", 0))
        there.append(m.state)
        m.state = m.state.copy()
        m.die()
        m.stops[inner.ident] = m.stops.get(inner.ident, 0) + 1

    assumed, outside = m.assumed.copy(), m.modes
    m.modes = own = marked_modes(m, frame, node, function, outside)
    m.givers[inner.ident] = stop
    try:
        _run(m, frame, node, atom, _body(function))
    finally:
        del m.givers[inner.ident]
    m.left.pop(inner.ident, None)
    if there:
        m.meet(there)
    _forget_assumed(m, assumed)
    m.modes = _seen_from(m, frame, node, outside, m.modes) if own is outside else outside
    return join(given) if given else UNKNOWN


def leave(m: Machine, frame: Frame, node: ast.AST, atom: Generator, raised: str | None) -> None:
    """Run what follows the ``yield`` where the generator stands.

    `raised` is what is raised there: None where nothing is, "" where that is not known.
    """
    function, inner = atom.function, atom.frame
    stopped = m.read(inner.ident, STOPPED)
    if stopped is None or m.dead or not isinstance(function, Function):
        return
    if not _may_run(m, frame, function, inner):
        return
    assumed, before, ends, caught = m.assumed.copy(), m.state, list[State](), list[Raised]()
    if raised is not None:
        m.raised.append(caught)
    m.givers[inner.ident] = lambda _: m.die()  # it should have stopped
    try:
        for choice in stopped.choices:
            m.state = before.copy()
            assume(m.assumed, choice.when)
            _run(m, frame, node, atom, _rest_at(m, function, of(choice.atom).constant, raised))
            ends += [m.state, *(state for _, _, state in m.outcomes(inner).returns)]
            del m.left[inner.ident]
    finally:
        del m.givers[inner.ident]
        if raised is not None:
            m.raised.pop()
    m.meet([*ends, *(state for _, state in caught)])
    _forget_assumed(m, assumed)


def swallows(m: Machine, atom: Generator) -> bool:
    """Whether an exception may end where the generator stands."""
    function, stopped = atom.function, m.read(atom.frame.ident, STOPPED)
    line = stopped.constant if stopped is not None else None
    if not isinstance(function, Function) or not isinstance(line, int):
        return False
    rest = _rest_at(m, function, line, "")
    while rest:
        node = rest[0]
        if isinstance(node, ast.Try) and any(
            not isinstance(handler.body[-1], ast.Raise) for handler in node.handlers
        ):
            return True
        rest = getattr(node, "body", [])
    return False


def _body(function: Function) -> list[ast.stmt]:
    body = function.node.body
    return body if isinstance(body, list) else []


def _may_run(m: Machine, frame: Frame, function: Function, inner: Frame) -> bool:
    """Whether it is run: not within itself, where it stands for others that were made there."""
    running = inner.ident in m.givers
    left_out = m.is_deep_in(frame, function) or m.gives_up_in(frame, function)
    return not running and not left_out


def _run(m: Machine, frame: Frame, node: ast.AST, atom: Generator, body: list[ast.stmt]) -> None:
    function, depth = atom.function, m.loop_depth
    assert isinstance(function, Function)
    m.stack.append(function.node)
    try:
        with m.called_from(frame, node, f"calls `{function.name}`"):
            m.block(atom.frame, body)
    finally:
        m.stack.pop()
        m.loop_depth = depth


def _forget_assumed(m: Machine, outside: Assumed) -> None:
    """Go on with what was assumed outside, and what of the rest holds for good."""
    told, m.state.assumed = m.assumed, outside
    assume(m.assumed, lasting(told, outside.copy()))


def _seen_from(m: Machine, frame: Frame, node: ast.AST, outside: Modes, inside: Modes) -> Modes:
    """The modes `inside`, of which those that are new are put in force at `node`."""
    here = m.site(frame, node)
    changed = {
        name: here
        for name in ("grad_site", "autocast", "tape")
        if getattr(inside, name) not in (None, getattr(outside, name))
    }
    return replace(inside, **changed) if changed else inside


def _rest_at(m: Machine, function: Function, line: object, raised: str | None) -> list[ast.stmt]:
    """What follows the ``yield`` in that line, with what is raised there."""
    key = (function.node, line, raised)
    found = m.rests.get(key)
    if found is None:
        rest = _rest(_body(function), line, raised) if isinstance(line, int) else None
        found = m.rests[key] = rest or []
    return found


def _rest(body: list[ast.stmt], line: int, raised: str | None) -> list[ast.stmt] | None:
    for index, node in enumerate(body):
        if not node.lineno <= line <= (node.end_lineno or line):
            continue
        after = body[index + 1 :]
        blocks = [(name, getattr(node, name, [])) for name in ("body", "orelse", "finalbody")]
        parts = [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]
        for name, block in (*blocks, *(("part", part.body) for part in parts)):
            rest = _rest(block, line, raised)
            if rest is not None:
                return [*_within(node, name, rest), *after]
        if raised is None:
            return after
        what = ast.Name(raised, ast.Load()) if raised else None
        return [ast.copy_location(ast.Raise(what and ast.copy_location(what, node)), node)]
    return None


def _within(node: ast.stmt, name: str, rest: list[ast.stmt]) -> list[ast.stmt]:
    """`rest`, the end of a block of `node`, with what `node` does as that is left."""
    made: ast.stmt
    if isinstance(node, (ast.With, ast.AsyncWith)):
        made = Rest([], rest)
        made.of = node
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and rest:
        once = ast.Tuple([ast.Constant(None)], ast.Load())
        target = ast.Name("<turn>", ast.Store())
        made = ast.For(target, once, rest, node.orelse)
        for part in (target, once, once.elts[0]):
            ast.copy_location(part, node)
    elif isinstance(node, TRIES) and name != "finalbody":
        handled = name == "body" and bool(rest)  # else nothing is there that may raise
        rest = rest or (node.orelse if name == "body" else [])
        handlers, orelse = (node.handlers, node.orelse) if handled else ([], [])
        if not handlers and not orelse and not node.finalbody:
            return rest
        body = rest or [ast.copy_location(ast.Pass(), node)]
        made = ast.Try(body, handlers, orelse, node.finalbody)
    else:
        return rest
    return [ast.copy_location(made, node)]
