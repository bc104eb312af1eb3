"""A module with one more import, among those that it has."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import libcst as cst

from gradguard_lint.fixes.arguments import with_comments_of, without_comments
from gradguard_lint.fixes.unwritable import Unwritable


def with_import(module: cst.Module, name: str, package: str | None) -> cst.Module:
    """`module` with ``import name`` or ``from package import name``, where it is missing."""
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
    place = _place(body, (package or name).partition(".")[0])
    if place < len(body) and place == _first(body):
        # The first import keeps no blank lines and comments before it from its block.
        statement = body[place]
        if isinstance(statement, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            line = line.with_changes(leading_lines=statement.leading_lines)
            if _is_import(statement):
                body[place] = statement.with_changes(leading_lines=())
    body.insert(place, line)
    return module.with_changes(body=body)


def _binds(names: Sequence[cst.ImportAlias], name: str) -> bool:
    for alias in names:
        if _dotted(alias.name) == name:
            if alias.asname is None:
                return True
            raise Unwritable(f"`{name}` is imported by another name")
    return False


def _with_name(names: Sequence[cst.ImportAlias], name: str) -> list[cst.ImportAlias]:
    """`names` and one more, laid out as they are."""
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
    """Where the first statement is that a new import may stand before."""
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


def _place(body: Sequence[cst.CSTNode], top: str) -> int:
    """Where the import of `top` belongs: beside imports of its kind, the standard library first."""
    start = _first(body)
    run = start
    while run < len(body) and _is_import(body[run]):
        run += 1
    if run == start:
        return start
    standard = top in sys.stdlib_module_names
    same = [
        index
        for index in range(start, run)
        if (_top(body[index]) in sys.stdlib_module_names) == standard and _top(body[index])
    ]
    if not same:
        return start if standard else run
    for index in same:
        if isinstance(body[index], cst.SimpleStatementLine) and _top(body[index]) > top:
            return index
    return same[-1] + 1
