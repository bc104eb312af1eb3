"""Draws that all workers should share, as each worker takes its own part of them.

The engine doesn't know computed numbers, and the part is selected far from the draw. So this reads
the source of a worker's modules, for the few draws that permute.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, TaskRun
from gradguard_lint.domain.values import Bound, Const, Function, Unknown
from gradguard_lint.engine.tree import last_name
from gradguard_lint.rules.base import sites_to

_ORDERING = ("permutation", "permuted", "randperm", "shuffle")
"""Names of draws that permute."""

Name = tuple[object, str]
"""A variable with its enclosing function, or an attribute of any object."""


def takes_its_own_part(task: TaskRun, draw: Effect) -> bool:
    """Whether the worker selects its part of the permutation `draw` by its own number."""
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
        ordered = [_name_of(around, call.args[0])]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        ordered = [_name_of(around, it) for it in targets]
    own = _numbers_of(task)
    while True:
        bound = {it for scope, node in parts for it in _bound_to_own(parts, scope, node, own)}
        if bound <= own:
            break
        own |= bound
    return any(
        isinstance(node, ast.Subscript)
        and _name_of(scope, node.value) in ordered
        and _reads(scope, node.slice, own)
        for scope, node in parts
        if ordered != [None]
    )


def _parts(node: ast.AST, scope: object) -> Iterator[tuple[object, ast.AST]]:
    """All nodes in `node`, with their enclosing function."""
    for child in ast.iter_child_nodes(node):
        yield scope, child
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from _parts(child, child if inside else scope)


def _name_of(scope: object, node: ast.expr) -> Name | None:
    if isinstance(node, ast.Attribute):
        return (None, node.attr)
    return (scope, node.id) if isinstance(node, ast.Name) else None


def _reads(scope: object, node: ast.AST, names: set[Name]) -> bool:
    return any(
        isinstance(part, (ast.Name, ast.Attribute)) and _name_of(scope, part) in names
        for part in ast.walk(node)
    )


def _numbers_of(task: TaskRun) -> set[Name]:
    """Parameters of the task's function that may be numbers and differ between tasks."""
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


def _bound_to_own(
    parts: list[tuple[object, ast.AST]], scope: object, node: ast.AST, own: set[Name]
) -> Iterator[Name]:
    """Names that `node` binds to a worker's own number, or a value computed from it."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        if node.value is not None and _reads(scope, node.value, own):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from filter(None, (_name_of(scope, it) for it in targets))
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        places = {place for place, it in enumerate(node.args) if _reads(scope, it, own)}
        words = {it.arg for it in node.keywords if _reads(scope, it.value, own)}
        for _, code in parts if places or words else ():
            if isinstance(code, ast.FunctionDef) and code.name == name:
                names = [it.arg for it in code.args.args if it.arg != "self"]
                yield from ((code, it) for at, it in enumerate(names) if at in places)
                yield from ((code, it) for it in names if it in words)
