"""Facts from loop bodies: names carried between iterations, and items that they replace."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gradguard_lint.engine.tree import descend, stored_names

Bound = frozenset[str] | None
"""The names certainly bound at a point; None if it is unreachable."""


@lru_cache(maxsize=4096)
def carried_names(loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
    """The names that an iteration may read as an earlier one left them."""
    found: set[str] = set()
    head = loop.test if isinstance(loop, ast.While) else loop.target
    _read((head,), frozenset(), found)
    _block(loop.body, stored_names(head), found)
    return frozenset(found)


def _read(nodes: Iterable[ast.AST | None], bound: frozenset[str], found: set[str]) -> None:
    for node in nodes:
        for part in descend(node) if node is not None else ():
            if type(part) is ast.Name and type(part.ctx) is ast.Load and part.id not in bound:
                found.add(part.id)


def _block(body: Sequence[ast.stmt], bound: Bound, found: set[str]) -> Bound:
    """The names bound after the statements; adds names read before being bound to `found`."""
    for statement in body:
        if bound is None:
            break
        bound = _statement(statement, bound, found)
    return bound


def _statement(node: ast.stmt, bound: frozenset[str], found: set[str]) -> Bound:
    match node:
        case ast.If():
            _read((node.test,), bound, found)
            return _either(_block(node.body, bound, found), _block(node.orelse, bound, found))
        case ast.For() | ast.AsyncFor():
            _read((node.iter, node.target), bound, found)
            _block(node.body, bound | stored_names(node.target), found)
            _block(node.orelse, bound, found)
            return bound
        case ast.While():
            _read((node.test,), bound, found)
            _block(node.body, bound, found)
            _block(node.orelse, bound, found)
            return bound
        case ast.With() | ast.AsyncWith():
            for item in node.items:
                _read((item.context_expr, item.optional_vars), bound, found)
                if item.optional_vars is not None:
                    bound |= stored_names(item.optional_vars)
            return _block(node.body, bound, found)
        case ast.Try():
            ends = [_block(node.orelse, _block(node.body, bound, found), found)]
            for handler in node.handlers:
                _read((handler.type,), bound, found)
                caught = bound | {handler.name} if handler.name else bound
                ends.append(_block(handler.body, caught, found))
            last = _block(node.finalbody, bound, found)
            end = _either(*ends)
            return None if end is None or last is None else end | last
        case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
            _read((node,), bound, found)
            return None
        case ast.AugAssign(target=ast.Name(id=name)):
            _read((node.value,), bound, found)
            if name not in bound:
                found.add(name)
            return bound | {name}
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            _read((node,), bound, found)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return bound.union(*map(stored_names, targets))
    _read((node,), bound, found)  # other bindings are ignored
    return bound


def _either(*ends: Bound) -> Bound:
    reached = [end for end in ends if end is not None]
    return frozenset.intersection(*reached) if reached else None


_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom)
"""Nodes that may leave some items unchanged."""


@lru_cache(maxsize=4096)
def rewritten_items(loop: ast.For | ast.AsyncFor) -> tuple[ast.Subscript, ...]:
    """The targets where each iteration replaces its item of the iterated container."""
    stored = [
        target
        for node in loop.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Name)
    ]
    if not stored:
        return ()
    index, container = _index(loop)
    found = tuple(
        target
        for target in stored
        if isinstance(target.slice, ast.Name)
        and target.slice.id == index
        and ast.dump(target.value) == container
    )
    if any(isinstance(part, _LEAVES) for node in loop.body for part in descend(node)):
        return ()
    return found


def _index(loop: ast.For | ast.AsyncFor) -> tuple[str, str]:
    """The index or key variable of the loop, and its container; "" if there is none."""
    source, name = loop.iter, loop.target
    pairs = False
    while isinstance(source, ast.Call) and not source.keywords:
        called, given = source.func, source.args
        if isinstance(called, ast.Name) and called.id in ("list", "tuple", "sorted"):
            pass  # of keys
        elif isinstance(called, ast.Name) and called.id in ("range", "len"):
            if called.id == "range" and not (given and _is_length(given[0])):
                return "", ""
        elif isinstance(called, ast.Name) and called.id == "enumerate":
            pairs = True
        elif isinstance(called, ast.Attribute) and called.attr in ("keys", "items") and not given:
            pairs = called.attr == "items"
            given = [called.value]
        else:
            return "", ""
        if len(given) != 1:
            return "", ""
        source = given[0]
    if pairs:
        name = name.elts[0] if isinstance(name, ast.Tuple) and name.elts else name
    elif isinstance(name, ast.Tuple):
        return "", ""
    return (name.id, ast.dump(source)) if isinstance(name, ast.Name) else ("", "")


def _is_length(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
