"""Draws that are meant to be the same in all workers: each takes a part of its own of them.

What is known of numbers ends where they are computed, and a part is taken far from the draw. So
this reads the source of the modules that a worker comes through, for the few draws that order
something.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, TaskRun
from gradguard_lint.domain.values import Bound, Const, Function, Unknown
from gradguard_lint.engine.tree import last_name
from gradguard_lint.rules.base import sites_to

_ORDERING = ("permutation", "permuted", "randperm", "shuffle")
"""The draws that put something in order."""

Name = tuple[object, str]
"""What something is called: a variable with the function around it, or an attribute of whatever."""


def takes_its_own_part(task: TaskRun, draw: Effect) -> bool:
    """Whether `draw` orders something of which the worker takes items by a number of its own."""
    call = draw.site.node
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") not in _ORDERING:
        return False
    functions = [getattr(atom, "function", atom) for atom in task.task.function.atoms]
    homes = [it.module for it in functions if isinstance(it, Function)]
    modules = dict.fromkeys([*homes, *(site.module for site in sites_to(draw))])
    parts = [part for module in modules for part in _parts(module.tree, None)]
    around = next((scope for scope, node in parts if node is call), None)
    statement = draw.site.statement
    if call.func.attr == "shuffle" and call.args:  # type: ignore[attr-defined]
        ordered = [_called(around, call.args[0])]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        ordered = [_called(around, it) for it in targets]
    own = _numbers_of(task)
    while True:
        more = {name for scope, node in parts for name in _given(parts, scope, node, own)} - own
        if not more:
            break
        own |= more
    return any(
        isinstance(node, ast.Subscript)
        and _called(scope, node.value) in ordered
        and _reads(scope, node.slice, own)
        for scope, node in parts
        if ordered != [None]
    )


def _parts(node: ast.AST, scope: object) -> Iterator[tuple[object, ast.AST]]:
    """All that is in `node`, each with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        yield scope, child
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from _parts(child, child if inside else scope)


def _called(scope: object, node: ast.expr) -> Name | None:
    if isinstance(node, ast.Attribute):
        return (None, node.attr)
    return (scope, node.id) if isinstance(node, ast.Name) else None


def _reads(scope: object, node: ast.AST, names: set[Name]) -> bool:
    return any(
        isinstance(part, (ast.Name, ast.Attribute)) and _called(scope, part) in names
        for part in ast.walk(node)
    )


def _numbers_of(task: TaskRun) -> set[Name]:
    """The parameters of what a task runs that may be numbers, and others for each task."""
    found: set[Name] = set()
    sent = task.task
    for atom in sent.function.atoms:
        function = atom.function if isinstance(atom, Bound) else atom
        if not isinstance(function, Function):
            continue
        names = [it.arg for it in function.node.args.args][isinstance(atom, Bound) :]
        given = [*zip(names, sent.args, strict=False)]
        own = [it for place, it in enumerate(given) if place in sent.private]
        own += [it for it in sent.keywords if it[0] in sent.private_names]
        found.update(
            (function.node, name)
            for name, value in own
            if all(isinstance(it, (Const, Unknown)) for it in value.atoms)
        )
    return found


def _given(
    parts: list[tuple[object, ast.AST]], scope: object, node: ast.AST, own: set[Name]
) -> Iterator[Name]:
    """What `node` gives a number of the worker's own, or what is computed of one."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        if node.value is not None and _reads(scope, node.value, own):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from filter(None, (_called(scope, it) for it in targets))
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        places = {place for place, it in enumerate(node.args) if _reads(scope, it, own)}
        words = {it.arg for it in node.keywords if _reads(scope, it.value, own)}
        for _, code in parts if places or words else ():
            if isinstance(code, ast.FunctionDef) and code.name == name:
                names = [it.arg for it in code.args.args if it.arg != "self"]
                yield from ((code, it) for at, it in enumerate(names) if at in places)
                yield from ((code, it) for it in names if it in words)
