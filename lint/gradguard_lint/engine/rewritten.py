"""Loops that give a container a new item for each that it has: ``xs[i] = f(xs[i])``."""

from __future__ import annotations

import ast

from gradguard_lint.engine.tree import descend

_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom)
"""What may leave some of the items as they are."""


def rewritten_items(loop: ast.For | ast.AsyncFor) -> tuple[ast.Subscript, ...]:
    """The places where each turn of `loop` sets its item of the container that it goes through."""
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
    """The name of the index or key, and the container of which it takes each; or nothing."""
    source, name = loop.iter, loop.target
    pairs = False
    while isinstance(source, ast.Call) and not source.keywords:
        called, given = source.func, source.args
        if isinstance(called, ast.Name) and called.id in ("list", "tuple", "sorted"):
            pass  # of the keys
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
