"""Displays: the tuple or dict literals that variables hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from gradguard_lint.domain.values import Frame
from gradguard_lint.engine.tree import descend, stored_names

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeGuard

Display = tuple[ast.expr, frozenset[str]]
"""A display, and the names bound by the comprehension around it."""


def display_of(frame: Frame, node: ast.expr) -> Display:
    """The display for `node`: itself, that of the name's only assignment, or an element of the list
    that a loop iterates."""
    if not isinstance(node, ast.Name):
        return node, frozenset()
    code: ast.AST = frame.module.tree if frame.function is None else frame.function.node
    bound, appended = _bindings(code)
    value = bound.get(node.id)
    if isinstance(value, (ast.For, ast.comprehension)):
        listed: ast.AST = value.iter
        if isinstance(listed, ast.Name):
            if listed.id in appended:
                return appended[listed.id]
            listed = bound.get(listed.id, listed)
        if isinstance(listed, ast.ListComp) and isinstance(listed.elt, _DISPLAYS):
            names = (stored_names(it.target) for it in listed.generators)
            return listed.elt, frozenset[str]().union(*names)
    elif isinstance(value, _DISPLAYS) or _makes_dict(value):
        return value, frozenset()
    return node, frozenset()


def _makes_dict(value: ast.AST | None) -> TypeGuard[ast.Call]:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "dict"


_DISPLAYS = (ast.Tuple, ast.List, ast.Dict)


@lru_cache(maxsize=512)
def _bindings(
    code: ast.AST,
) -> tuple[Mapping[str, ast.expr | ast.For | ast.comprehension], Mapping[str, Display]]:
    """The binding of each name bound once in `code` (a value or loop), and the display appended to
    each list with no other items."""
    times: dict[str, int] = {}
    found: dict[str, ast.expr | ast.For | ast.comprehension] = {}
    appended: dict[str, list[Display]] = {}
    for part in descend(code):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            times[part.id] = times.get(part.id, 0) + 1
        elif isinstance(part, ast.arg):
            times[part.arg] = times.get(part.arg, 0) + 1
        elif isinstance(part, ast.Assign):
            found.update((it.id, part.value) for it in part.targets if isinstance(it, ast.Name))
        elif isinstance(part, (ast.For, ast.comprehension)):
            if isinstance(part.target, ast.Name):
                found[part.target.id] = part
            if isinstance(part, ast.For):
                for name, item in _appended(part):
                    appended.setdefault(name, []).append((item, stored_names(part)))
    once = {name: value for name, value in found.items() if times[name] == 1}
    lists = {
        name: items[0]
        for name, items in appended.items()
        if len(items) == 1 and isinstance(once.get(name), ast.List)
    }
    return once, lists


def _appended(loop: ast.For) -> Iterator[tuple[str, ast.expr]]:
    """The displays that `loop` appends, with the name of the list."""
    for part in descend(loop):
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "append"
            and isinstance(part.func.value, ast.Name)
            and len(part.args) == 1
            and isinstance(part.args[0], _DISPLAYS)
        ):
            yield part.func.value.id, part.args[0]
