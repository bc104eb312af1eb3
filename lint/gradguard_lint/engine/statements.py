"""Statements that bind names or branch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from functools import partial

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import (
    STUB,
    Atom,
    Class,
    External,
    Frame,
    Function,
    Method,
    Value,
    of,
)
from gradguard_lint.engine.branches import TURN, definite, enter_branch, fork
from gradguard_lint.engine.calls import UNCHANGING
from gradguard_lint.engine.lookups import identify
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import descend
from pytest_gradguard.records import replace


def do_Expr(m: Machine, frame: Frame, node: ast.Expr) -> None:
    m.eval(frame, node.value)


def do_Global(m: Machine, frame: Frame, node: ast.Global) -> None:
    for name in node.names:
        frame.outer[name] = frame.root


def do_Nonlocal(m: Machine, frame: Frame, node: ast.Nonlocal) -> None:
    for name in node.names:
        scope = frame.parent
        while scope is not None:
            if (scope.ident, name) in m.store and not scope.is_class:
                frame.outer[name] = scope
                break
            scope = scope.parent


def do_Assert(m: Machine, frame: Frame, node: ast.Assert) -> None:
    test = m.eval(frame, node.test)
    if not enter_branch(m, frame, node.test, test, True):
        m.die()


def do_If(m: Machine, frame: Frame, node: ast.If) -> None:
    _identify(m, frame, node.test)
    test = m.eval(frame, node.test)
    if m.facts.before_main is None and frame.parent is None and _is_main_guard(m, frame, node.test):
        m.facts.before_main = dict(m.state.past)

    turns = _turns_told(m, frame, node.test, test)

    def way(body: list[ast.stmt]) -> Callable[[], None]:
        def go() -> None:
            for key, turn in turns.items():
                m.assumed[key] = turn
            m.block(frame, body)

        return go

    new = turns.keys() - m.assumed.keys()
    fork(m, frame, node.test, test, (way(node.body), way(node.orelse)))
    for key in new & m.assumed.keys():
        del m.assumed[key]


def _identify(m: Machine, frame: Frame, test: ast.expr) -> None:
    """Give unknown values in a test a key, so that later tests ask about the same object."""
    waiting = [test]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.UnaryOp):
            waiting.append(node.operand)
        elif isinstance(node, ast.BoolOp):
            waiting += node.values
        elif isinstance(node, ast.Compare):
            waiting += (node.left, *node.comparators)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                waiting += node.args
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKING:
                waiting.append(node.func.value)
        elif isinstance(node, ast.BinOp):
            waiting += (node.left, node.right)
        elif isinstance(node, ast.Subscript):
            waiting.append(node.value)
        else:
            if isinstance(node, ast.Attribute):
                waiting.append(node.value)
            identify(m, frame, node)


_LOOKING = UNCHANGING | {"get"}
"""Methods whose receiver is the subject of a test."""


def _turns_told(m: Machine, frame: Frame, node: ast.expr, test: Value) -> dict[Key, Hashable]:
    """The iterations of loops over known items that `test` identifies."""
    if not frame.loop_names or not m.place.turns.loops or definite(test) is None:
        return {}
    names = frozenset(part.id for part in descend(node) if isinstance(part, ast.Name))
    here = [loop.keys for loop in m.place.turns.loops if loop.function is frame.function]
    return {
        ("value", key): m.place.turns.loops[-1].turn
        for bound, keys in zip(reversed(frame.loop_names), reversed(here), strict=False)
        for key in keys
        if isinstance(key, tuple) and key[0] == TURN and bound & names
    }


def _is_main_guard(m: Machine, frame: Frame, test: ast.expr) -> bool:
    return (
        frame.module.name == m.program.entry
        and isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
    )


def do_FunctionDef(m: Machine, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    frame.shared = True
    scope: Frame | None = frame
    while scope is not None:
        scope.shared = True
        scope = scope.parent
    defaults = tuple(m.eval(frame, item) for item in node.args.defaults)
    kw_defaults = tuple(
        m.eval(frame, item) if item is not None else None for item in node.args.kw_defaults
    )
    owner = frame.cls if frame.is_class else None
    function = Function(node, frame.module, frame, owner, defaults, kw_defaults)
    value = of(function)
    for decorator in reversed(node.decorator_list):
        value = m.models.decorate(m, frame, decorator, value, function)
    if node.decorator_list:
        value = value.map(partial(_wrapper, function))
    m.write(frame, node.name, m.models.described(m, frame, node.name) or value)


def _wrapper(function: Function, atom: Atom) -> Value:
    """The decorated `function`, with a reference to the original."""
    if isinstance(atom, Function) and atom.node is not function.node:
        return of(replace(atom, wraps=function))
    return of(atom)


def do_ClassDef(m: Machine, frame: Frame, node: ast.ClassDef) -> None:
    frame.shared = True
    bases: list[Atom] = []
    for base in node.bases:
        # Subscripts of bases are type arguments.
        value = m.eval(frame, base.value if isinstance(base, ast.Subscript) else base)
        bases.extend(atom for atom in value.atoms if isinstance(atom, (Class, External, Method)))
    body = Frame(m.new_ident(), frame.module, frame, frame.function, is_class=True, born=frame.born)
    what = m.models.class_of(tuple(bases)) or m.models.class_by_use(m, node)
    what = what or (STUB if frame.module.is_stub else "")
    cls = Class(node, frame.module, frame, tuple(bases), body, what, _above(bases))
    body.cls = cls
    m.block(body, node.body)
    value = of(cls)
    for decorator in reversed(node.decorator_list):
        value = m.models.decorate_class(m, frame, decorator, value)
    m.write(frame, node.name, m.models.described(m, frame, node.name) or value)


def _above(bases: list[Atom]) -> tuple[Class, ...]:
    """The project classes in the MRO after a class with `bases`."""
    own = [base for base in bases if isinstance(base, Class)]
    lines = [*([base, *base.above] for base in own), own]
    found: list[Class] = []
    while lines := [line for line in lines if line]:
        first = next(
            (line[0] for line in lines if not any(line[0] in other[1:] for other in lines)),
            lines[0][0],  # Python rejects such a class
        )
        found.append(first)
        lines = [[item for item in line if item is not first] for line in lines]
    return tuple(found)
