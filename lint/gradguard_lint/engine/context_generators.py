"""Context managers written as generators: `enter` runs up to the ``yield``, `leave` the rest."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import Assumed, assume, lasting
from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.state import Raised, State
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Frame,
    Function,
    Generator,
    Value,
    constant,
    join,
    of,
)
from gradguard_lint.engine.calls import marked_modes
from gradguard_lint.engine.iteration import body_of, following, may_run, run_body, suspend
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import TRIES
from pytest_gradguard.records import replace

STOPPED = "<stopped>"
"""Store key: the line of the ``yield`` at which a generator is suspended."""


class Rest(ast.With):
    """What is left of the block of a ``with`` statement, whose contexts were entered before."""

    of: ast.AST


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


def enter(m: Machine, frame: Frame, node: ast.AST, atom: Generator) -> Value:
    """Run the generator up to its ``yield``: what that gives, in the modes that hold there."""
    function, inner = atom.function, atom.frame
    m.store.drop((inner.ident, STOPPED))
    if not isinstance(function, Function) or not may_run(m, atom):
        return UNKNOWN
    given: list[Value] = []
    there: list[State] = []

    def stop(value: Value) -> None:
        given.append(value)
        m.store[inner.ident, STOPPED] = constant(getattr(m.statement, "lineno", 0))
        there.append(suspend(m, atom))

    assumed, outside = m.assumed.copy(), m.modes
    m.modes = own = marked_modes(m, frame, node, function, outside)
    run_body(m, frame, node, atom, body_of(function), stop, f"calls `{function.name}`")
    del m.left[inner.ident]
    if there:
        m.meet(there)
    _forget_assumed(m, assumed)
    m.modes = _seen_from(m, frame, node, outside, m.modes) if own is outside else outside
    return join(given) if given else UNKNOWN


def leave(m: Machine, frame: Frame, node: ast.AST, atom: Generator, raised: str | None) -> None:
    """Run what follows the ``yield`` at which the generator is suspended.

    `raised` is what is raised there: None where nothing is, "" where that is not known.
    """
    function, inner = atom.function, atom.frame
    stopped = m.read(inner.ident, STOPPED)
    if stopped is None or m.dead or not isinstance(function, Function) or not may_run(m, atom):
        return
    assumed, before, ends, caught = m.assumed.copy(), m.state, list[State](), list[Raised]()
    if raised is not None:
        m.raised.append(caught)
    message = f"calls `{function.name}`"
    try:
        for choice in stopped.choices:
            m.state = before.copy()
            assume(m.assumed, choice.when)
            rest = _rest_at(m, function, of(choice.atom).constant, raised)
            run_body(m, frame, node, atom, rest, lambda _: m.die(), message)  # it yields once
            ends += [m.state, *(state for _, _, state in m.left.pop(inner.ident).returns)]
    finally:
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
        rest = _rest(body_of(function), line, raised) if isinstance(line, int) else None
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
