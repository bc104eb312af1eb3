"""Walks of syntax trees, much faster than `ast.walk`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

OWN_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
"""Nodes with scopes of their own."""

TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
"""``try`` statements of all Python versions."""


def descend(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all its descendants in no particular order, without name contexts."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        if type(node) not in _LEAVES:
            pending += _children(node)


def yields(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    """Whether the function `node` is a generator function."""
    pending: list[ast.AST] = [] if isinstance(node, ast.Lambda) else [*node.body]
    while pending:
        part = pending.pop()
        if isinstance(part, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(part, OWN_SCOPES):
            pending += _children(part)
    return False


def _children(node: ast.AST) -> list[ast.AST]:
    """The child nodes of `node`."""
    found: list[ast.AST] = []
    for value in node.__dict__.values():
        if type(value) is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and type(value) not in _CONTEXTS:
            found.append(value)
    return found


_CONTEXTS = frozenset({ast.Load, ast.Store, ast.Del})

_LEAVES = frozenset({ast.Name, ast.Constant})
"""Nodes without children: more than half of all."""


def takes_all(index: ast.expr) -> bool:
    """Whether `index` selects everything: ``[:]``, ``[...]``."""
    if isinstance(index, ast.Slice):
        return not (index.lower or index.upper or index.step)
    return isinstance(index, ast.Constant) and index.value is ...


def is_fixed(index: ast.expr) -> bool:
    """Whether `index` consists of literal numbers and slices."""
    kinds = (ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.USub)
    return all(isinstance(part, kinds) for part in descend(index))


def parents_in(node: ast.AST) -> dict[ast.AST, ast.AST]:
    """The parent of each node in `node`."""
    return {part: it for it in ast.walk(node) for part in ast.iter_child_nodes(it)}


def last_name(node: ast.AST) -> str:
    """The name of `node`, or of its last attribute; "" if it is neither."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


@lru_cache(maxsize=4096)
def stored_names(node: ast.AST) -> frozenset[str]:
    """The names bound in `node`."""
    return frozenset(
        item.id for item in descend(node) if type(item) is ast.Name and type(item.ctx) is ast.Store
    )


@lru_cache(maxsize=4096)
def free_names(node: ast.AST) -> tuple[str, ...]:
    """The names that a function reads without binding them."""
    bound = {it.arg for it in descend(node) if type(it) is ast.arg} | stored_names(node)
    read = (it.id for it in descend(node) if type(it) is ast.Name)
    return tuple(name for name in dict.fromkeys(read) if name not in bound)


@lru_cache(maxsize=256)
def sets_attributes(cls: ast.ClassDef) -> bool:
    """Whether the methods of a class set attributes."""
    return any(
        isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) for part in descend(cls)
    )
