"""A program's source as a syntax tree, without the warnings of parsing it.

Python warns as it parses some strings, such as ``"\\d"``; the program's own import has done that,
or not, if it was cached.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import warnings
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAME = "<source that gradguard reads>"
_IGNORED: Any = ("ignore", None, Warning, re.compile(re.escape(_NAME)), 0)
"""A filter for this name alone, inserted briefly at the front. Other warnings are unaffected: the
change is not announced to all threads, as `warnings.catch_warnings` would."""


def parsed(source: str) -> ast.Module:
    """The syntax tree of `source`.

    Raises:
        SyntaxError, ValueError, RecursionError: it cannot be parsed.
    """
    filters: Any = getattr(warnings, "_get_filters", _filters)()
    filters.insert(0, _IGNORED)
    try:
        return ast.parse(source, filename=_NAME)
    finally:
        if _IGNORED in filters:  # unless the program has reset them meanwhile
            filters.remove(_IGNORED)


def _filters() -> Any:
    return warnings.filters


def tree_of(path: str) -> ast.Module | None:
    """The syntax tree of the file `path`, or of a notebook cell; None if it cannot be parsed."""
    return _tree("".join(linecache.getlines(path)))


@functools.lru_cache(maxsize=8)
def _tree(source: str) -> ast.Module | None:
    try:
        return parsed(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def scope_at(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function around `line`, with its decorators; otherwise the module."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0):
                found = node  # outer functions come first
    return found
