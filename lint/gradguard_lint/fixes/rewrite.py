"""A file's source with changes made: one libcst transformer, and every other byte as it was."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from gradguard_lint.fixes.arguments import appended, without
from gradguard_lint.fixes.changes import (
    Change,
    Decorate,
    Import,
    InsertBefore,
    RemoveArgument,
    RenameKeywords,
    Replace,
    ReplaceStatement,
    SetKeyword,
    UnderWith,
    Unwritable,
    Wrap,
)
from gradguard_lint.fixes.edits import lines_of
from gradguard_lint.fixes.imports import with_import, without_unused
from gradguard_lint.reading.source import Module

Span = tuple[int, int, int, int]

_PRIMARY = (
    cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.List, cst.Dict, cst.Set, cst.ListComp,
    cst.DictComp, cst.SetComp, cst.SimpleString, cst.FormattedString,
)  # fmt: skip
_PLACE = "_gradguard_place_"


class Source:
    """A module as libcst reads it: once for all of its repairs.

    Attributes:
        text: the source as libcst reads all of it: without blank lines at its end, and with no
            carriage return as the end of a line.
        read: what libcst gives back as it.
        newline: what ends a line instead, or "".
    """

    def __init__(self, module: Module, text: str) -> None:
        """Read the source `text` of `module`.

        Raises:
            Unwritable: libcst does not read it.
        """
        self.newline = "\r" if lines_of(text)[0].endswith("\r") else ""
        text = re.sub(r"\r(?!\n)", "\n", text)
        code = text.rstrip()
        text = self.text = code + lines_of(text[len(code) :])[0]
        self._module = module
        try:
            self._tree = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
            self.read = self._tree.module.code
        except (cst.ParserSyntaxError, RecursionError) as error:
            raise Unwritable(str(error)) from None

    def changed(self, changes: Sequence[Change]) -> str:
        """The source with the `changes` made.

        Raises:
            Unwritable: one of them has no place in the source, or no plain way to be written there.
        """
        try:
            transformer = _Changes(self._module, changes)
            changed = self._tree.visit(transformer)
            for change in changes:
                if isinstance(change, Import):
                    changed = with_import(changed, change.name, change.package)
            replaced = {
                change.node.id
                for change in changes
                if isinstance(change, Replace) and isinstance(change.node, ast.Name)
            }
            if replaced and not self._module.path.endswith("__init__.py"):
                changed = without_unused(changed, replaced)
            transformer.check()
            return changed.code
        except (cst.ParserSyntaxError, cst.CSTValidationError, RecursionError) as error:
            raise Unwritable(str(error)) from None


class _Changes(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: Module, changes: Sequence[Change]) -> None:
        super().__init__()
        self.wanted: dict[tuple[str, Span], list[Change]] = {}
        for change in changes:
            if not isinstance(change, Import):
                key = (_kind(change.node), _span(module, change.node))
                self.wanted.setdefault(key, []).append(change)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Visit only nodes on the way to a change."""
        if not isinstance(node, (cst.BaseStatement, cst.BaseSuite)):
            return True
        place = self.get_metadata(PositionProvider, node)
        first, last = place.start.line, place.end.line
        return any(first <= span[0] and span[2] <= last for _, span in self.wanted)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        kind = _kind_of(original_node)
        if not kind:
            return updated_node
        in_a_line = isinstance(original_node, cst.SimpleStatementSuite)
        node = original_node.body[0] if in_a_line else original_node
        place = self.get_metadata(PositionProvider, node)
        span = (place.start.line, place.start.column, place.end.line, place.end.column)
        result = updated_node
        changes = self.wanted.pop((kind, span), ())
        if changes and in_a_line:
            end = result.trailing_whitespace
            result = cst.SimpleStatementLine(result.body, trailing_whitespace=end)
        for change in changes:
            result = _MAKE[type(change)](result, change)
        if changes and in_a_line:
            return cst.IndentedBlock(getattr(result, "nodes", None) or [result])
        return result

    def check(self) -> None:
        """Check that every change was made."""
        if self.wanted:
            raise Unwritable("the source has no such node")


def _kind(node: ast.AST) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "function"
    if isinstance(node, ast.stmt):
        return "statement"
    return type(node).__name__ if isinstance(node, ast.Call) else "expression"


def _kind_of(node: cst.CSTNode) -> str:
    if isinstance(node, cst.FunctionDef):
        return "function"
    if isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        return "statement"
    if isinstance(node, cst.SimpleStatementSuite) and len(node.body) == 1:
        return "statement"  # it gets lines of its own
    if isinstance(node, cst.Call):
        return "Call"
    return "expression" if isinstance(node, cst.BaseExpression) else ""


def _span(module: Module, node: Any) -> Span:
    """The span of `node` as libcst counts it: lines from 1, columns from 0, in characters."""
    end = node.end_lineno
    return (
        node.lineno,
        module.column(node.lineno, node.col_offset) - 1,
        end,
        module.column(end, node.end_col_offset) - 1,
    )


def _set_keyword(call: cst.Call, change: SetKeyword) -> cst.Call:
    value = cst.parse_expression(change.value)
    for index, argument in enumerate(call.args):
        if argument.star == "**":
            raise Unwritable("the keyword may be among others that are unpacked")
        if argument.keyword is not None and argument.keyword.value == change.name:
            args = list(call.args)
            args[index] = argument.with_changes(value=value)
            return call.with_changes(args=args)
    return appended(call, change.name, value)


def _remove_argument(call: cst.Call, change: RemoveArgument) -> cst.Call:
    return without(call, change.name)


def _rename_keywords(call: cst.Call, change: RenameKeywords) -> cst.Call:
    args = [
        argument.with_changes(keyword=cst.Name(change.names[argument.keyword.value]))
        if argument.keyword is not None and argument.keyword.value in change.names
        else argument
        for argument in call.args
    ]
    return call.with_changes(args=args)


def _wrap(node: cst.BaseExpression, change: Wrap) -> cst.BaseExpression:
    if not node.lpar and not isinstance(node, _PRIMARY):
        node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    around = cst.parse_expression(f"{change.before}{_PLACE}{change.after}")
    filled = around.visit(_Fill(node))
    assert isinstance(filled, cst.BaseExpression)
    return filled


class _Fill(cst.CSTTransformer):
    def __init__(self, node: cst.BaseExpression) -> None:
        super().__init__()
        self.node = node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self.node if updated_node.value == _PLACE else updated_node


def _replace(node: cst.BaseExpression, change: Replace) -> cst.BaseExpression:
    return cst.parse_expression(change.source).with_changes(lpar=node.lpar, rpar=node.rpar)


def _decorate(function: cst.FunctionDef, change: Decorate) -> cst.FunctionDef:
    decorator = cst.Decorator(cst.parse_expression(change.source))
    return function.with_changes(decorators=[*function.decorators, decorator])


def _under_with(statement: Any, change: UnderWith) -> Any:
    item = cst.WithItem(cst.parse_expression(change.source))
    if isinstance(statement, cst.With):
        new = item.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        before, after = statement.items[: change.index], statement.items[change.index :]
        return statement.with_changes(items=[*before, new, *after])
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        raise Unwritable("only a simple statement is put under `with`")
    body = cst.IndentedBlock([statement.with_changes(leading_lines=())])
    return cst.With([item], body, leading_lines=statement.leading_lines)


def _insert_before(statement: Any, change: InsertBefore) -> Any:
    first: Any
    first, *others = cst.parse_module(change.source).body
    first = first.with_changes(leading_lines=statement.leading_lines)
    return cst.FlattenSentinel([first, *others, statement.with_changes(leading_lines=())])


def _replace_statement(statement: Any, change: ReplaceStatement) -> Any:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        raise Unwritable("the statement shares its line")
    line = cst.ensure_type(cst.parse_statement(change.source), cst.SimpleStatementLine)
    return statement.with_changes(body=line.body)


_MAKE: dict[type[Change], Callable[[Any, Any], Any]] = {
    SetKeyword: _set_keyword,
    RemoveArgument: _remove_argument,
    RenameKeywords: _rename_keywords,
    Wrap: _wrap,
    Replace: _replace,
    Decorate: _decorate,
    UnderWith: _under_with,
    InsertBefore: _insert_before,
    ReplaceStatement: _replace_statement,
}
