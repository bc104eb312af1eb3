"""Whether a value that was read at one line goes on to a loss, as far as the source tells.

A value that is only printed, logged, tested or collected elsewhere cuts no graph, although it was
read out of one. The source is read only when a gradient is missing; names are followed within the
function that holds the line.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType

from pytest_gradguard.runtime.callsite import Site

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


def reaches(site: Site | None, backwards: Iterable[Site | None]) -> bool | None:
    """Whether what is read at `site` goes on to a loss that runs backward at `backwards`.

    Returns:
        True where the source shows it, False where it shows that the value stays away from the
        loss, None where it does not tell.
    """
    if site is None:
        return None
    source = _tree(site.path)
    if source is None:
        return None
    function = _function_of(source, site.code)
    if function is None:
        return None
    statements = list(_statements(function))
    start = [statement for statement in statements if _covers(statement, site.line)]
    if not start:
        return None
    start = [min(reversed(start), key=_height)]  # of equals the innermost, which comes last
    sinks = [
        statement
        for known in backwards
        if known is not None and known.code is site.code
        for statement in statements
        if _covers(statement, known.line) and not _is_block(statement)
    ]
    tainted, escapes = _follow(start[0], statements, site.line)
    if sinks:
        if any(tainted & _reads(statement) for statement in sinks) or start[0] in sinks:
            return True
        return None if escapes else False
    return None if escapes else False


@lru_cache(maxsize=32)
def _tree(path: str) -> ast.Module | None:
    lines = linecache.getlines(path)
    if not lines:
        return None
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None


def _function_of(source: ast.Module, code: CodeType) -> _Function | None:
    if code.co_name == "<module>":
        return source
    for node in ast.walk(source):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                return node
    return None


def _statements(function: _Function) -> Iterator[ast.stmt]:
    """The statements of a function, those of nested blocks included, of nested functions not."""
    body = function.body if not isinstance(function, ast.Lambda) else []
    stack: list[ast.stmt] = list(reversed(body))
    while stack:
        statement = stack.pop()
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            stack.extend(reversed(getattr(statement, name, [])))
        for handler in getattr(statement, "handlers", []):
            stack.extend(reversed(handler.body))
        for case in getattr(statement, "cases", []):
            stack.extend(reversed(case.body))


def _is_block(statement: ast.stmt) -> bool:
    return hasattr(statement, "body")


def _covers(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _height(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno


def _follow(start: ast.stmt, statements: list[ast.stmt], line: int) -> tuple[frozenset[str], bool]:
    """The names that hold the value read in `start`, and whether it leaves the function."""
    tainted = set(_writes(start))
    escapes = _escapes(start, tainted)
    if _is_test(start, line):
        return frozenset(), False
    changed = True
    while changed:
        changed = False
        for statement in statements:
            if statement is start or not tainted & _reads(statement):
                continue
            new = set(_writes(statement)) - tainted
            if new:
                tainted |= new
                changed = True
            escapes = escapes or _escapes(statement, tainted)
    return frozenset(tainted), escapes


def _is_test(statement: ast.stmt, line: int) -> bool:
    """Whether the value only decides something: the test of an `if`, a `while`, an `assert`."""
    if isinstance(statement, ast.Assert):
        return True
    test = getattr(statement, "test", None)
    return (
        isinstance(statement, (ast.If, ast.While))
        and test is not None
        and test.lineno <= line <= (test.end_lineno or test.lineno)
    )


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """The parts of a statement that run by themselves: of a block, its head."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement]  # what a nested function reads, it may use at any time
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, (ast.If, ast.While)):
        return [statement.test]
    if isinstance(statement, ast.Match):
        return [statement.subject]
    if isinstance(statement, ast.Try):
        return []
    return [statement]


def _reads(statement: ast.stmt) -> set[str]:
    """The names that `statement` reads: ``x``, and ``self.x`` for an attribute."""
    found: set[str] = set()
    for head in _heads(statement):
        for node in ast.walk(head):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                dotted = _dotted(node)
                if dotted:
                    found.add(dotted)
    if isinstance(statement, ast.AugAssign):
        dotted = _dotted(statement.target)
        if dotted:
            found.add(dotted)
    return found


def _writes(statement: ast.stmt) -> list[str]:
    """The names that hold, after `statement`, something made of what it reads."""
    targets: list[ast.AST] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        targets = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items if item.optional_vars]
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    elif isinstance(statement, ast.Expr):
        targets = list(_changed_by(statement.value))
    written = [name for target in targets for name in _names_of(target)]
    for head in _heads(statement):
        for node in ast.walk(head):
            if isinstance(node, ast.NamedExpr):
                written.extend(_names_of(node.target))
    return written


def _changed_by(expression: ast.AST) -> Iterator[ast.AST]:
    """What a call that stands alone may change: ``parts`` in ``parts.append(value)``."""
    if isinstance(expression, (ast.Await, ast.YieldFrom)):
        expression = expression.value
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        owner = expression.func.value
        if isinstance(owner, ast.Attribute) and owner.attr == "data":
            return  # p.data.copy_(…) writes into a tensor; nothing is read for a loss
        yield owner


def _names_of(target: ast.AST) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _names_of(element)
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        yield from _names_of(target.value)
    elif isinstance(target, ast.Call):
        yield from _names_of(target.func)
    else:
        if isinstance(target, ast.Attribute) and target.attr == "data":
            return
        dotted = _dotted(target)
        if dotted:
            yield dotted


def _dotted(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _escapes(statement: ast.stmt, tainted: set[str]) -> bool:
    """Whether the value leaves the function here: returned, yielded, or stored on an object."""
    if isinstance(statement, (ast.Return, ast.Global, ast.Nonlocal)):
        return True
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement)):
        return True
    return any("." in name for name in _writes(statement) if name in tainted)
