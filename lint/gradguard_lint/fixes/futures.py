"""Where a program asks the futures that a call gives for what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.values import Site
from gradguard_lint.engine.tree import parents_in
from gradguard_lint.fixes.later import way_to
from gradguard_lint.fixes.written import keyword

_ASKS = ("get", "result")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def asked(site: Site) -> list[ast.Call]:
    """The calls that ask what the call at `site` gives for what it holds; none where something else
    may do that, or where it is not told: it is asked at once, or has one name, or is in a list that
    has one, through which a loop goes."""
    if isinstance(site.node, ast.Call) and keyword(site.node, "callback") is not None:
        return []
    way = way_to(site.module.tree, site.node)
    scope = next((it for it in reversed(way) if isinstance(it, _FUNCTIONS)), way[0])
    above = parents_in(scope)
    made = above.get(site.node)
    if isinstance(made, ast.Attribute):
        return _all([_asking(site.node, above)])
    if isinstance(made, ast.Assign):
        return _of_name(made.targets, scope, above)
    if isinstance(made, ast.ListComp):
        kept = above.get(made)
        return _of_list(kept.targets, scope, above) if isinstance(kept, ast.Assign) else []
    appended_to = _appended_to(made)
    return [] if appended_to is None else _of_list([appended_to], scope, above)


def _all(found: list[ast.Call | None]) -> list[ast.Call]:
    told = [it for it in found if it is not None]
    return told if len(told) == len(found) else []


def _asking(node: ast.AST, above: dict[ast.AST, ast.AST]) -> ast.Call | None:
    """The call by which `node` is asked for what it holds, if that is what is done with it."""
    method = above.get(node)
    call = above.get(method) if isinstance(method, ast.Attribute) else None
    is_asked = isinstance(method, ast.Attribute) and method.attr in _ASKS
    return call if is_asked and isinstance(call, ast.Call) and call.func is method else None


def _appended_to(node: ast.AST | None) -> ast.expr | None:
    """The list that something is appended to, if `node` does that."""
    method = node.func if isinstance(node, ast.Call) else None
    return method.value if isinstance(method, ast.Attribute) and method.attr == "append" else None


def _uses(targets: list[ast.expr], scope: ast.AST) -> Iterator[ast.Name]:
    """The places where the one name among `targets` is read, if it gets its value once."""
    names = [it.id for it in targets if isinstance(it, ast.Name)]
    if len(names) != 1 or len(targets) != 1:
        return
    found = [it for it in ast.walk(scope) if isinstance(it, ast.Name) and it.id == names[0]]
    read = [it for it in found if isinstance(it.ctx, ast.Load)]
    if len(found) == len(read) + 1:
        yield from read


def _of_name(
    targets: list[ast.expr], scope: ast.AST, above: dict[ast.AST, ast.AST]
) -> list[ast.Call]:
    return _all([_asking(it, above) for it in _uses(targets, scope)])


def _of_list(
    targets: list[ast.expr], scope: ast.AST, above: dict[ast.AST, ast.AST]
) -> list[ast.Call]:
    found: list[ast.Call] = []
    for use in _uses(targets, scope):
        all_of_them: ast.AST = use
        around = above[use]
        if isinstance(around, ast.Attribute) and _appended_to(above.get(around)) is use:
            continue
        if isinstance(around, ast.Call) and ast.unparse(around.func).endswith("as_completed"):
            all_of_them, around = around, above[around]
        if not isinstance(around, (ast.For, ast.comprehension)) or around.iter is not all_of_them:
            return []
        inside = scope if isinstance(around, ast.For) else above[around]
        each = _of_name([around.target], inside, above)
        if not each:
            return []
        found += each
    return found
