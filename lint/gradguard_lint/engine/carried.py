"""What one turn of a loop takes over from the turn before: names that are read before bound."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from gradguard_lint.engine.tree import descend, stored_names

Bound = frozenset[str] | None
"""The names that are bound for certain at a place; None where it is never reached."""


def carried_names(loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
    """The names that a turn of `loop` may read as an earlier turn has left them."""
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
    """What is bound at the end of statements; `found` gets what they read before."""
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
    _read((node,), bound, found)  # what else binds names is not counted on
    return bound


def _either(*ends: Bound) -> Bound:
    reached = [end for end in ends if end is not None]
    return frozenset.intersection(*reached) if reached else None
