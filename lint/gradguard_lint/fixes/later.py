"""What a function still does with the arguments of a call, once the call is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradguard_lint.domain.values import Site
from gradguard_lint.words import words

_LOOKS = words("shape dtype ndim size nbytes itemsize strides")
"""Attributes that tell nothing of what an array holds."""


def reads_again(site: Site) -> bool:
    """Whether the function around the call at `site` reads an argument of it afterwards."""
    call = site.node
    if not isinstance(call, ast.Call):
        return False
    way = way_to(site.module.tree, call)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
    start = max((i for i, node in enumerate(way) if isinstance(node, functions)), default=0)
    for argument in (*call.args, *(item.value for item in call.keywords)):
        if not isinstance(argument, (ast.Name, ast.Attribute)):
            continue
        written = ast.unparse(argument)
        if not _is_bound_by(site.statement, written) and any(_reads(written, way[start:], call)):
            return True
    return False


def way_to(tree: ast.AST, wanted: ast.AST) -> list[ast.AST]:
    """The nodes from `tree` down to `wanted`; `wanted` itself where it is not in there."""
    way = _way_to(tree, wanted, getattr(wanted, "lineno", None))
    return way or _way_to(tree, wanted, None) or [wanted]  # before 3.12, f-strings count otherwise


def _way_to(tree: ast.AST, wanted: ast.AST, line: int | None) -> list[ast.AST]:
    """The same, of what may have something at `line`; empty where it is not in there."""
    for child in ast.iter_child_nodes(tree):
        if child is wanted:
            return [tree, child]
        if line is None or _reaches(child, line):
            below = _way_to(child, wanted, line)
            if below:
                return [tree, *below]
    return []


def _reaches(node: ast.AST, line: int) -> bool:
    """Whether `node`, with its decorators, may have something at `line`."""
    first = next(iter(getattr(node, "decorator_list", ())), node)
    start, end = getattr(first, "lineno", None), getattr(node, "end_lineno", None)
    return start is None or end is None or start <= line <= end


def _reads(written: str, way: Sequence[ast.AST], call: ast.Call) -> Iterator[bool]:
    """For each place of the function that reads `written`: whether it may do so after `call`."""
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
    """What does not run after the last node of `way`: other branches, and what follows a return."""
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
    """The statements after those that hold the last node of `way`."""
    for node, inner in pairwise(way):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list) and inner in block:
                yield from block[block.index(inner) + 1 :]


def _is_bound_by(statement: ast.AST | None, written: str) -> bool:
    """Whether the statement gives the name another value: what follows reads that."""
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    return any(ast.unparse(target) == written for target in targets)


def _binds(loop: ast.AST, written: str) -> bool:
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node) == written.partition(".")[0]
        for node in ast.walk(loop)
    )
