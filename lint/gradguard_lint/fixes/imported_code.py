"""Code of a module that runs on each import, and code that only the main program runs, after it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from gradguard_lint.engine.tree import last_name
from gradguard_lint.reading.source import Module

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


def is_guard(statement: ast.stmt) -> bool:
    """Whether `statement` tests whether the module is the main program."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def on_import(module: Module) -> list[ast.stmt]:
    """The statements that run on each import of `module`, except definitions."""
    return [it for it in module.tree.body if not isinstance(it, DEFINITIONS) and not is_guard(it)]


def afterwards(module: Module, inside: Collection[str]) -> Iterator[ast.AST]:
    """The code of `module` that the program runs after its import: under its main guard, and
    functions, except those that run `inside` the workers or during the import only."""
    guards = [*filter(is_guard, module.tree.body)]
    outer = [*_outer(module.tree)]
    functions = [it for it in outer if isinstance(it, FUNCTIONS)]
    bodies = [*guards, *(part for it in functions for part in it.body)]
    at_import = [*on_import(module), *(part for it in outer for part in it.decorator_list)]
    apart = [part for it in functions if it.name not in inside for part in it.body]
    called = {last_name(it.func) for it in _walk([*guards, *apart]) if isinstance(it, ast.Call)}
    then, now = ({last_name(it) for it in _walk(parts)} for parts in (bodies, at_import))
    yield from guards
    for function in functions:
        name = function.name
        if (name not in inside or name in called) and (name in then or name not in now):
            yield function


def _walk(parts: Collection[ast.AST]) -> Iterator[ast.AST]:
    return (node for part in parts for node in ast.walk(part))


def _outer(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The classes and functions in `tree` that are not in a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, DEFINITIONS):
            yield node
        if not isinstance(node, (*FUNCTIONS, ast.expr)) and not (
            isinstance(node, ast.stmt) and is_guard(node)
        ):
            yield from _outer(node)
