"""Uses of a call's arguments and futures in the code after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradguard_lint.domain.values import Site
from gradguard_lint.engine.tree import parents_in
from gradguard_lint.fixes.written import keyword
from gradguard_lint.words import words

_LOOKS = words("shape dtype ndim size nbytes itemsize strides")
"""Attributes that do not depend on an array's values."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def reads_again(site: Site) -> bool:
    """Whether the function around the call at `site` reads an argument of the call afterwards."""
    call = site.node
    if not isinstance(call, ast.Call):
        return False
    way = way_to(site.module.tree, call)
    start = max((i for i, node in enumerate(way) if isinstance(node, _FUNCTIONS)), default=0)
    for argument in (*call.args, *(item.value for item in call.keywords)):
        if not isinstance(argument, (ast.Name, ast.Attribute)):
            continue
        written = ast.unparse(argument)
        if not _is_bound_by(site.statement, written) and any(_reads(written, way[start:], call)):
            return True
    return False


def way_to(tree: ast.AST, wanted: ast.AST) -> list[ast.AST]:
    """The nodes from `tree` down to `wanted`; `wanted` alone if `tree` does not contain it."""
    above = parents_in(tree)
    way = [wanted]
    while way[-1] in above:
        way.append(above[way[-1]])
    return way[::-1]


def _reads(written: str, way: Sequence[ast.AST], call: ast.Call) -> Iterator[bool]:
    """For each place in the function that reads `written`: whether it may run after `call`."""
    loops = [node for node in way if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
    loops = [node for node in loops if not _binds(node, written)]
    again = {id(node) for loop in loops for node in ast.walk(loop)}
    unreachable = {id(node) for other in _others(way) for node in ast.walk(other)}
    own = {id(node) for node in ast.walk(call)}
    for parent in ast.walk(way[0]):
        if isinstance(parent, ast.Attribute) and parent.attr in _LOOKS:
            continue
        if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "len":
            continue
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, (ast.Name, ast.Attribute)) or ast.unparse(node) != written:
                continue
            if not isinstance(node.ctx, ast.Load):
                continue
            if id(node) in own:
                yield id(node) in again
            else:
                later = (node.lineno, node.col_offset) > (call.lineno, call.col_offset)
                yield id(node) in again or (later and id(node) not in unreachable)


def _others(way: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Code that does not run after the last node of `way`: other branches, code after a return."""
    for index, node in enumerate(way[:-1]):
        if isinstance(node, ast.IfExp):
            yield from (arm for arm in (node.body, node.orelse) if arm is not way[index + 1])
        blocks = [getattr(node, name, None) for name in ("body", "orelse")]
        for block in blocks:
            if not isinstance(block, list) or way[index + 1] not in block:
                continue
            if isinstance(node, ast.If):
                others = [
                    other for other in blocks if isinstance(other, list) and other is not block
                ]
                yield from (inner for other in others for inner in other)
            if isinstance(block[-1], (ast.Return, ast.Raise)):
                yield from _following(way[: index + 1])


def _following(way: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The statements after those that contain the last node of `way`."""
    for node, inner in pairwise(way):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list) and inner in block:
                yield from block[block.index(inner) + 1 :]


def _is_bound_by(statement: ast.AST | None, written: str) -> bool:
    """Whether the statement rebinds the name: later reads get that value."""
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    return any(ast.unparse(target) == written for target in targets)


def _binds(loop: ast.AST, written: str) -> bool:
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node) == written.partition(".")[0]
        for node in ast.walk(loop)
    )


# -- futures ---------------------------------------------------------------------------------------

_ASKS = ("get", "result")


def asked(site: Site) -> list[ast.Call]:
    """The calls that get the results of the futures which the call at `site` returns.

    Empty where other code may get them: all uses are known where a result is gotten at once, or
    where the future, or a list of them which a loop iterates, has one name.
    """
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
    calls = [it for it in found if it is not None]
    return calls if len(calls) == len(found) else []


def _asking(node: ast.AST, above: dict[ast.AST, ast.AST]) -> ast.Call | None:
    """The call of `get` or `result` on `node`, if that is its use."""
    method = above.get(node)
    call = above.get(method) if isinstance(method, ast.Attribute) else None
    is_asked = isinstance(method, ast.Attribute) and method.attr in _ASKS
    return call if is_asked and isinstance(call, ast.Call) and call.func is method else None


def _appended_to(node: ast.AST | None) -> ast.expr | None:
    """The list that `node` appends to, if it does."""
    method = node.func if isinstance(node, ast.Call) else None
    return method.value if isinstance(method, ast.Attribute) and method.attr == "append" else None


def _uses(targets: list[ast.expr], scope: ast.AST) -> Iterator[ast.Name]:
    """The reads of the only name among `targets`, if it is bound once."""
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
