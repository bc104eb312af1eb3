"""Displays: the tuple or dict in the source that a variable holds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from gradguard_lint.domain.values import Frame
from gradguard_lint.engine.tree import descend, stored_names

Display = tuple[ast.expr, frozenset[str]]
"""A display, and the names that the comprehension around it binds."""

_NO_NAMES: frozenset[str] = frozenset()


def display_of(frame: Frame, node: ast.expr) -> Display:
    """The tuple, list or dict that `node` stands for: itself, or what the one assignment to a name
    says, or the loop that goes through a list of such."""
    if not isinstance(node, ast.Name):
        return node, _NO_NAMES
    code: ast.AST = frame.module.tree if frame.function is None else frame.function.node
    bound = _bindings(code)
    value = bound.get(node.id)
    if isinstance(value, ast.For):
        listed = value.iter
        if isinstance(listed, ast.Name):
            held = bound.get(listed.id)
            listed = held if isinstance(held, ast.expr) else listed
        if isinstance(listed, ast.ListComp) and isinstance(listed.elt, _DISPLAYS):
            names = (stored_names(it.target) for it in listed.generators)
            return listed.elt, _NO_NAMES.union(*names)
        return node, _NO_NAMES
    callee = value.func if isinstance(value, ast.Call) else None
    is_dict = isinstance(callee, ast.Name) and callee.id == "dict"
    if value is not None and (is_dict or isinstance(value, _DISPLAYS)):
        return value, _NO_NAMES
    return node, _NO_NAMES


_DISPLAYS = (ast.Tuple, ast.List, ast.Dict)


@lru_cache(maxsize=512)
def _bindings(code: ast.AST) -> Mapping[str, ast.expr | ast.For]:
    """What binds each name in `code` that is bound once: the value, or the loop."""
    times: dict[str, int] = {}
    found: dict[str, ast.expr | ast.For] = {}
    for part in descend(code):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            times[part.id] = times.get(part.id, 0) + 1
        elif isinstance(part, ast.arg):
            times[part.arg] = times.get(part.arg, 0) + 1
        elif isinstance(part, ast.Assign):
            found.update((it.id, part.value) for it in part.targets if isinstance(it, ast.Name))
        elif isinstance(part, ast.For) and isinstance(part.target, ast.Name):
            found[part.target.id] = part
    return {name: value for name, value in found.items() if times[name] == 1}
