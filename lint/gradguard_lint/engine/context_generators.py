"""Context managers written as generators: `enter` runs up to ``yield``, `leave` the rest."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from gradguard_lint.domain.conditions import Assumed, assume, lasting_conditions
from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.state import Raised, State
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Frame,
    Function,
    Generator,
    Value,
    join,
    of,
)
from gradguard_lint.engine.iteration import (
    CONSUMED,
    body_of,
    lines_of_yield,
    may_run,
    next_item,
    run,
    run_body,
    suspend,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import TRIES
from pytest_gradguard.records import replace


class Rest(ast.With):
    """The rest of a ``with`` block whose contexts were entered before."""

    of: ast.AST


def method(m: Machine, frame: Frame, node: ast.AST, atom: Generator, name: str) -> Value:
    if name in ("__enter__", "__aenter__"):
        return enter(m, frame, node, atom)
    if name in ("__exit__", "__aexit__"):
        leave(m, frame, node, atom, None)
        return NOTHING
    if name in ("send", "asend", "__next__", "__anext__"):
        return next_item(m, frame, node, atom, None)
    return of(atom) if name in ("__iter__", "__aiter__") else UNKNOWN


def enter(m: Machine, frame: Frame, node: ast.AST, atom: Generator) -> Value:
    """Run the generator up to its ``yield``; the value and modes there."""
    if not isinstance(atom.function, Function) or not may_run(m, frame, atom):
        return UNKNOWN
    given: list[Value] = []
    there: list[State] = []

    def stop(value: Value) -> None:
        given.append(value)
        there.append(suspend(m, atom))

    assumed, outside = m.assumed.copy(), m.modes
    m.store.drop((atom.frame.ident, CONSUMED))
    run(m, frame, node, atom, stop)
    if there:
        m.meet(there)
    _forget_assumed(m, assumed)
    m.modes = _seen_from(m, frame, node, outside, m.modes)
    return join(given) if given else UNKNOWN


def leave(m: Machine, frame: Frame, node: ast.AST, atom: Generator, raised: str | None) -> None:
    """Run what follows the ``yield`` at which the generator is suspended.

    `raised` is the exception raised there: None for none, "" if it is unknown.
    """
    function, inner = atom.function, atom.frame
    lines = lines_of_yield(m, inner)
    if not lines or m.dead or not isinstance(function, Function) or not may_run(m, frame, atom):
        return
    assumed, before, ends, caught = m.assumed.copy(), m.state, list[State](), list[Raised]()
    if raised is not None:
        m.place.raised.append(caught)
    message = f"calls `{function.name}`"
    try:
        for line, when in lines:
            m.state = before.copy()
            assume(m.assumed, when)
            rest = _rest_at(function.node, line, raised)
            run_body(m, frame, node, atom, rest, lambda _: m.die(), message)  # it yields only once
            ends += [m.state, *(state for _, _, state in m.place.exits.pop(inner.ident).returns)]
    finally:
        if raised is not None:
            m.place.raised.pop()
    m.meet([*ends, *(state for _, state in caught)])
    _forget_assumed(m, assumed)


def swallows(m: Machine, atom: Generator) -> bool:
    """Whether the generator may suppress an exception at its ``yield``."""
    function, lines = atom.function, lines_of_yield(m, atom.frame)
    if not isinstance(function, Function) or len(lines) != 1:
        return False
    rest = _rest_at(function.node, lines[0][0], "")
    while rest:
        node = rest[0]
        if isinstance(node, ast.Try) and any(
            not isinstance(handler.body[-1], ast.Raise) for handler in node.handlers
        ):
            return True
        rest = getattr(node, "body", [])
    return False


def _forget_assumed(m: Machine, outside: Assumed) -> None:
    """Restore the assumptions `outside`, with the lasting ones added."""
    inside, m.state.assumed = m.assumed, outside
    assume(m.assumed, lasting_conditions(inside, outside.copy()))


def _seen_from(m: Machine, frame: Frame, node: ast.AST, outside: Modes, inside: Modes) -> Modes:
    """The modes `inside`, where new ones are set at `node`."""
    here = m.site(frame, node)
    changed = {
        name: here
        for name in ("grad_site", "autocast", "tape")
        if getattr(inside, name) not in (None, getattr(outside, name))
    }
    return replace(inside, **changed) if changed else inside


@lru_cache(maxsize=1024)
def _rest_at(code: ast.AST, line: int, raised: str | None) -> Sequence[ast.stmt]:
    """The statements after the ``yield`` in that line, with the exception raised there."""
    return _rest(body_of(code), line, raised) or ()


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
    """`rest`, the end of a block of `node`, wrapped in what `node` does on exit."""
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
        handled = name == "body" and bool(rest)  # otherwise nothing there may raise
        rest = rest or (node.orelse if name == "body" else [])
        handlers, orelse = (node.handlers, node.orelse) if handled else ([], [])
        if not handlers and not orelse and not node.finalbody:
            return rest
        body = rest or [ast.copy_location(ast.Pass(), node)]
        made = ast.Try(body, handlers, orelse, node.finalbody)
    else:
        return rest
    return [ast.copy_location(made, node)]
