"""The value that a module's import gives a global, if its source shows a plain value.

A global that the import computes (from the time, the process, the command line) may differ between
processes without a change by the program; its initial value is unknown.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.code_names import Chain, absolute_name
from pytest_gradguard.runtime.kernel.parsing import parsed

UNKNOWN = object()

_LARGEST = 1_000_000
_PACKAGES = 5
"""Through how many modules a re-exported name is followed."""
_NAMESPACES = ("SimpleNamespace", "Namespace")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _Source(NamedTuple):
    """The globals of a module.

    Attributes:
        values: the expression of each global that the module's own code assigns once, by name.
        classes: the classes by name.
        imported: by name, the module that it is imported from, and its name there.
    """

    values: dict[str, ast.expr]
    classes: dict[str, ast.ClassDef]
    imported: dict[str, tuple[str, str]]


_sources: weakref.WeakKeyDictionary[types.ModuleType, _Source] = weakref.WeakKeyDictionary()


def initial_value(module: types.ModuleType, path: Chain) -> Any:
    """The value that an import of `module` leaves at `path`, a global and attributes of it.

    `UNKNOWN` if the source does not show it; so are parts of a dict that are not plain values.
    """
    name, *attributes = path
    source = _source_of(module)
    for _ in range(_PACKAGES):
        if name not in source.imported:
            break
        origin, name = source.imported[name]
        if origin not in sys.modules:
            return UNKNOWN
        source = _source_of(sys.modules[origin])
    if len(attributes) > 1:
        return UNKNOWN
    if name in source.classes:
        body = source.classes[name].body
        return _of_class(body, attributes[0]) if attributes else UNKNOWN
    if name not in source.values:
        return UNKNOWN
    value = source.values[name]
    return _of_object(value, attributes[0], source.classes) if attributes else _value(value)


def _source_of(module: types.ModuleType) -> _Source:
    source = _sources.get(module)
    if source is None:
        source = _sources[module] = _read(module)
    return source


def _read(module: types.ModuleType) -> _Source:
    try:
        own = callsite.is_user_file(getattr(module, "__file__", None))
        text = inspect.getsource(module) if own else ""
        body = parsed(text if len(text) < _LARGEST else "").body
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        body = []
    stores: Counter[str] = Counter()
    changed: set[str] = set()
    for node in _executed(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stores[node.id] += 1
        elif isinstance(node, _SCOPES) and not isinstance(node, ast.Lambda):
            stores[node.name] += 1
        elif isinstance(node, ast.alias):
            stores[(node.asname or node.name).partition(".")[0]] += 1
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            if not isinstance(node.ctx, ast.Load):
                changed |= _base(node)
        elif isinstance(node, ast.Call):
            changed |= _base(node.func) if isinstance(node.func, ast.Attribute) else set()
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                changed |= _base(argument)
    values: dict[str, ast.expr] = {}
    classes: dict[str, ast.ClassDef] = {}
    imported: dict[str, tuple[str, str]] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            classes[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom):
            origin = absolute_name(statement.module or "", statement.level, module.__package__)
            imported.update({one.asname or one.name: (origin, one.name) for one in statement.names})
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            for name in _targets(statement):
                values[name] = statement.value
    once = {name for name, count in stores.items() if count == 1} - changed
    return _Source(
        {name: value for name, value in values.items() if name in once},
        {name: known for name, known in classes.items() if name in once},
        {name: known for name, known in imported.items() if name in once},
    )


def _executed(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes that run as the module is imported: none inside functions and classes."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            stack += ast.iter_child_nodes(node)


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _base(node: ast.AST) -> set[str]:
    """The global that `node` is, or is a part of."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _of_class(body: list[ast.stmt], name: str) -> Any:
    """The value of the class attribute `name`."""
    found = [
        statement.value
        for statement in body
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and name in _targets(statement)
    ]
    return _value(found[0]) if len(found) == 1 and found[0] is not None else UNKNOWN


def _of_object(made: ast.expr, name: str, classes: dict[str, ast.ClassDef]) -> Any:
    """The attribute `name` of an object, as the call `made` creates it."""
    if not isinstance(made, ast.Call) or made.args:
        return UNKNOWN
    kind = made.func.attr if isinstance(made.func, ast.Attribute) else _base(made.func)
    given = {keyword.arg: keyword.value for keyword in made.keywords}
    if None in given:
        return UNKNOWN
    if isinstance(kind, set):
        kind = next(iter(kind), "")
    if kind in _NAMESPACES:
        return _value(given[name]) if name in given else UNKNOWN
    body = classes[kind].body if isinstance(made.func, ast.Name) and kind in classes else []
    init = next((s for s in body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
    if init is None:
        return _value(given[name]) if name in given else _of_class(body, name)
    stored = [
        statement.value
        for statement in ast.walk(init)
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        for target in (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        )
        if isinstance(target, ast.Attribute) and target.attr == name
    ]
    if len(stored) != 1 or stored[0] is None:
        return UNKNOWN
    if not isinstance(stored[0], ast.Name):
        return _value(stored[0])
    parameter = stored[0].id
    return _value(given.get(parameter) or _defaults(init.args).get(parameter))


def _defaults(arguments: ast.arguments) -> dict[str, ast.expr]:
    """The defaults of a function's parameters, by name."""
    plain = [*arguments.posonlyargs, *arguments.args]
    given = arguments.defaults
    pairs = [*zip(plain[len(plain) - len(given) :], given, strict=True)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    pairs += [(argument, value) for argument, value in named if value is not None]
    return {argument.arg: value for argument, value in pairs}


def _value(node: ast.expr | None) -> Any:
    """The plain value of an expression, or `UNKNOWN`."""
    if node is None:
        return UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_value(key) for key in node.keys]
        if any(key is UNKNOWN or not isinstance(key, (str, int, float)) for key in keys):
            return UNKNOWN
        return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        named = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
        return named if node.func.id == "dict" and None not in named else UNKNOWN
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            try:
                return _OPERATORS[type(node.op)](left, right)
            except ArithmeticError:
                pass
    return UNKNOWN
