"""Add an import to a module, among its others."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Any

import libcst as cst

from gradguard_lint.fixes.arguments import with_comments_of, without_comments
from gradguard_lint.fixes.changes import Unwritable


def with_import(module: cst.Module, name: str, package: str | None) -> cst.Module:
    """`module` with ``import name`` or ``from package import name``, if it is missing."""
    body = list(module.body)
    for index, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for position, small in enumerate(statement.body):
            if package is None and isinstance(small, cst.Import) and _binds(small.names, name):
                return module
            if (
                isinstance(small, cst.ImportFrom)
                and not small.relative
                and _dotted(small.module) == package
                and not isinstance(small.names, cst.ImportStar)
            ):
                if _binds(small.names, name):
                    return module
                parts = list(statement.body)
                parts[position] = small.with_changes(names=_with_name(small.names, name))
                body[index] = statement.with_changes(body=parts)
                return module.with_changes(body=body)
    source = f"import {name}" if package is None else f"from {package} import {name}"
    line = cst.ensure_type(
        cst.parse_statement(source, module.config_for_parsing), cst.SimpleStatementLine
    )
    place, begins = _place(body, line)
    if begins:
        # The new first import takes the blank lines and comments before the block.
        statement = body[place]
        if isinstance(statement, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            line = line.with_changes(leading_lines=statement.leading_lines)
            if _is_import(statement):
                body[place] = statement.with_changes(leading_lines=())
    body.insert(place, line)
    return module.with_changes(body=body)


def without_unused(module: cst.Module, names: Collection[str]) -> cst.Module:
    """`module` without the unused ones of `names`; an import statement keeps at least one name."""
    used = _Used()
    module.visit(used)
    body = list(module.body)
    for index, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        small = statement.body[0]
        if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
            kept = _without(small.names, {*names} - used.names)
            if kept != [*small.names]:
                changed = small.with_changes(names=kept)
                body[index] = statement.with_changes(body=[changed, *statement.body[1:]])
    return module.with_changes(body=body)


class _Used(cst.CSTVisitor):
    """The names in a module, and the words in its strings, which may be names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._attribute: cst.Name | None = None

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        return False

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._attribute = node.attr

    def visit_Name(self, node: cst.Name) -> None:
        if node is not self._attribute:
            self.names.add(node.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.names.update(re.findall(r"\w+", node.value))


def _without(names: Sequence[cst.ImportAlias], unused: Collection[str]) -> list[cst.ImportAlias]:
    """`names` without the `unused` ones; keeps those with comments, and at least one."""
    kept: list[cst.ImportAlias] = []
    for alias in names:
        bound = alias.asname.name if alias.asname is not None else alias.name
        comma = alias.comma
        space = comma.whitespace_after if isinstance(comma, cst.Comma) else None
        if _dotted(bound) not in unused or with_comments_of(space or _NONE, _NONE) is not _NONE:
            kept.append(alias)
        elif kept and alias is names[-1]:
            kept[-1] = kept[-1].with_changes(comma=comma)
    return kept or [*names]


_NONE = cst.SimpleWhitespace("")


def _binds(names: Sequence[cst.ImportAlias], name: str) -> bool:
    for alias in names:
        if _dotted(alias.name) == name:
            if alias.asname is None:
                return True
            raise Unwritable(f"`{name}` is imported by another name")
    return False


def _with_name(names: Sequence[cst.ImportAlias], name: str) -> list[cst.ImportAlias]:
    """`names` and one more, in the same layout."""
    *before, last = names
    new = cst.ImportAlias(cst.Name(name))
    space: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    if before and isinstance(before[-1].comma, cst.Comma):
        space = without_comments(before[-1].comma.whitespace_after)
    if isinstance(last.comma, cst.Comma):
        end = last.comma.whitespace_after
        if not before and isinstance(end, cst.ParenthesizedWhitespace):
            space = without_comments(end).with_changes(last_line=cst.SimpleWhitespace("    "))
        space = with_comments_of(end, space)
        new = new.with_changes(comma=cst.Comma(whitespace_after=without_comments(end)))
    return [*before, last.with_changes(comma=cst.Comma(whitespace_after=space)), new]


def _dotted(node: cst.BaseExpression | None) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _top(statement: cst.CSTNode) -> str:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Import):
        return _dotted(small.names[0].name).partition(".")[0]
    if isinstance(small, cst.ImportFrom):
        return "" if small.relative else _dotted(small.module).partition(".")[0]
    return ""


def _first(body: Sequence[cst.CSTNode]) -> int:
    """The index of the first statement that may follow a new import."""
    start = 0
    if body and isinstance(body[0], cst.SimpleStatementLine):
        small = body[0].body[0]
        if isinstance(small, cst.Expr) and isinstance(
            small.value, (cst.SimpleString, cst.ConcatenatedString)
        ):
            start = 1
    while start < len(body) and _top(body[start]) == "__future__":
        start += 1
    return start


def _place(body: Sequence[cst.CSTNode], new: cst.CSTNode) -> tuple[int, bool]:
    """The index for the import `new`: among imports of its kind, the standard library first, in
    their order. And whether it begins their block."""
    start = _first(body)
    run = start
    while run < len(body) and _is_import(body[run]):
        run += 1
    standard = _top(new) in sys.stdlib_module_names
    same = [
        index
        for index in range(start, run)
        if (_top(body[index]) in sys.stdlib_module_names) == standard and _top(body[index])
    ]
    if not same:
        place = start if standard else run
        return place, place == start < len(body)
    # a blank line begins another block, as for the project's own imports
    same = [*takewhile(lambda index: index == same[0] or not _leads(body[index]), same)]
    block = [body[index] for index in same]
    key = next((it for it in _ORDERS if block == sorted(block, key=it)), _top)
    place = next((index for index in same if key(body[index]) > key(new)), same[-1] + 1)
    return place, place == same[0]


def _leads(statement: cst.CSTNode) -> bool:
    """Whether there is a blank line before `statement`."""
    lines = getattr(statement, "leading_lines", ())
    return any(line.comment is None for line in lines)


def _by_name(statement: cst.CSTNode) -> str:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Import):
        return _dotted(small.names[0].name).lower()
    return _dotted(small.module).lower() if isinstance(small, cst.ImportFrom) else ""


def _plain_first(statement: cst.CSTNode) -> tuple[bool, str]:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(small, cst.ImportFrom), _by_name(statement)


_ORDERS: tuple[Callable[[cst.CSTNode], Any], ...] = (_plain_first, _by_name)
"""Sort keys for the imports of a block: as isort does it, or by name regardless of their form."""
