"""The tree walk that computes a file's footprint."""

from __future__ import annotations

import ast

from gradguard_lint.engine.footprint import (
    ATTRIBUTE,
    OWN_CODE,
    Binding,
    Definition,
    Footprint,
    Imported,
    Place,
    asked,
    called,
    filling,
    key_of,
    keyword,
    quoted,
    writing,
)
from gradguard_lint.engine.tree import OWN_SCOPES, descend, last_name, takes_all

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

METHODS = -2
"""The scope of statements directly in a class."""


def footprint(
    tree: ast.Module, called_by_calls: frozenset[str], strings: frozenset[str] = frozenset()
) -> Footprint:
    """The footprint of `tree`; `strings` are mentioned like names."""
    found = Footprint(called_by_calls=called_by_calls, strings=strings)
    found.definitions[OWN_CODE] = ("", found.own)
    done = found.filled.setdefault("", set())
    for node in tree.body:
        keeps = isinstance(node, _KEEPING) or (isinstance(node, ast.If) and _is_main(node))
        _visit(node, (found.own,) if keeps else (found.own, done), 0, found)
    return found


_KEEPING = (*OWN_SCOPES, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
"""Statements that only bind names."""


def _is_main(node: ast.If) -> bool:
    """Whether it tests ``__name__``."""
    return any(isinstance(it, ast.Name) and it.id == "__name__" for it in ast.walk(node.test))


def _visit(node: ast.AST, said: tuple[set[str], ...], scope: int, found: Footprint) -> None:
    kind = type(node)
    named: Any = node
    if kind is ast.Name:
        if type(named.ctx) is ast.Load:
            found.loaded.add(named.id)
        for names in said:
            names.add(named.id)
        return
    if kind is ast.Attribute:
        if type(named.ctx) is ast.Load:
            found.loaded.add(named.attr)
            root = named.value
            while type(root) is ast.Attribute:
                root = root.value
            if type(root) is ast.Name:
                found.read_from.setdefault(root.id, set()).add(named.attr)
        word = asked(named.attr)
        for names in said:
            names.add(word)
        if (named.attr[-1:] == "_" and named.attr[-2:] != "__") or (
            named.attr == "data" and type(named.ctx) is ast.Store
        ):
            _write(named.value, said, scope, found)
        _visit(named.value, said, scope, found)
        return
    if kind is ast.Constant:
        if named.value in found.strings:
            for names in said:
                names.add(quoted(named.value))
        return
    if (kind is ast.Expr or kind is ast.AugAssign) and scope == 0:
        root = _root(named.value) if kind is ast.Expr else last_name(named.target)
        if root:
            said = (*said, found.filled.setdefault(root, set()))
    if kind is ast.keyword:
        if named.arg is not None:
            word = keyword(named.arg)
            for names in said:
                names.add(word)
    elif kind is ast.Call:
        _call(named.func, said)
    elif kind is ast.Import or kind is ast.ImportFrom:
        found.imports += _imported(named)
        words = [part for alias in named.names for part in alias.name.split(".")]
        if kind is ast.ImportFrom and named.module:
            words.extend(named.module.split("."))
        for names in said:
            if names is not found.own:
                names.update(words)
        return
    elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
        own: set[str] = set()
        found.definitions[key_of(named)] = (named.name, own)
        if scope != METHODS:
            found.bindings.append(Binding({named.name}, set(), own, scope, held=False))
        elif named.name not in _IMPLIED:
            found.bindings.append(Binding(set(), {asked(named.name)}, own, 0, held=False))
        if scope == 0:
            _decorate(named, found)
        said = (*(names for names in said if names is not found.own), own)
        scope = max(scope, 0) or named.lineno
        for decorator in named.decorator_list:
            _call(decorator, said)
    elif kind is ast.ClassDef:
        if scope == 0:
            _decorate(named, found)
        _visit_class(named, said, found)
        return
    elif kind is ast.AugAssign:
        _write(named.target, said, scope, found)
    elif kind is ast.Subscript:
        if type(named.ctx) is ast.Store:
            _fill(named.value, said)
            if takes_all(named.slice):
                _write(named.value, said, scope, found)
    elif kind is ast.arg:
        found.given.add((scope, named.arg))
    elif kind is ast.For or kind is ast.AsyncFor or kind is ast.comprehension:
        found.given |= _places([named.target], scope)
    elif (kind is ast.MatchAs or kind is ast.MatchStar) and named.name is not None:
        found.given.add((scope, named.name))
    elif kind is ast.Global:
        found.shared.update(named.names)
    elif kind is ast.Assign or kind is ast.AnnAssign or kind is ast.NamedExpr:
        value: set[str] = set()
        targets = named.targets if kind is ast.Assign else [named.target]
        found.bindings.append(Binding(*_targets(targets), value, scope))
        if type(named.value) is ast.Call and type(targets[0]) is ast.Name:
            found.imports += _imported_as(targets[0].id, named.value)
        for target in targets:
            root = "" if scope or type(target) is ast.Name else _root(target)
            changed = (found.filled.setdefault(root, value),) if root else ()
            _visit(target, (*said, *changed), scope, found)
        if kind is ast.AnnAssign:
            _visit(named.annotation, said, scope, found)
            if named.value is None:
                found.given |= _places(targets, scope)
                return
        _visit(named.value, (*said, value), scope, found)
        return
    elif kind is ast.withitem and named.optional_vars is not None:
        value = set()
        found.bindings.append(Binding(*_targets([named.optional_vars]), value, scope))
        _visit(named.context_expr, (*said, value), scope, found)
        _visit(named.optional_vars, said, scope, found)
        return
    silent = _NO_NAMES if found.strings else _NO_NAMES_OR_STRINGS
    for part in node.__dict__.values():
        if type(part) is list:
            for item in part:
                if type(item) not in silent:
                    _visit(item, said, scope, found)
        elif isinstance(part, ast.AST) and type(part) not in silent:
            _visit(part, said, scope, found)


def _imported(node: ast.Import | ast.ImportFrom) -> list[Imported]:
    """The names that an import binds."""
    if isinstance(node, ast.Import):
        names = ((it.name, it.asname or it.name.partition(".")[0]) for it in node.names)
        return [(name, "", here) for name, here in names]
    base = "." * node.level + (node.module or "")
    return [(base, it.name, it.asname or it.name) for it in node.names]


def _imported_as(name: str, call: ast.Call) -> list[Imported]:
    """The import as `name` that `call` performs."""
    if last_name(call.func) != "import_module":
        return []
    module = getattr(call.args[0], "value", None) if len(call.args) == 1 else None
    return [(module, "", name)] if isinstance(module, str) else []


def _root(node: ast.expr) -> str:
    """The variable at the root of an attribute, item or call; "" if there is none."""
    if not isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        return ""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _decorate(node: Definition | ast.ClassDef, found: Footprint) -> None:
    """Record decorators of a function or class of the module."""
    for it in node.decorator_list:
        decorator = it.func if isinstance(it, ast.Call) else it
        method = isinstance(decorator, ast.Attribute)
        name = decorator.id if isinstance(decorator, ast.Name) else _root(decorator)
        if name:
            found.decorators.setdefault(node.name, set()).add((name, method))


def _write(target: ast.expr, said: tuple[set[str], ...], scope: int, found: Footprint) -> None:
    """Record a write to `target`, or to what it is a part of."""
    while isinstance(target, ast.Subscript) or (
        isinstance(target, ast.Attribute) and target.attr == "data"
    ):
        target = target.value
    place = (ATTRIBUTE, asked(target.attr) if isinstance(target, ast.Attribute) else "")
    if isinstance(target, ast.Name):
        place = (scope, target.id)
    found.written.add(place)
    for names in said:
        names.add(writing(place))


def _call(function: ast.expr, said: tuple[set[str], ...]) -> None:
    """Record a call of `function`."""
    if isinstance(function, (ast.Name, ast.Attribute)):
        name = function.id if isinstance(function, ast.Name) else function.attr
        for names in said:
            names.add(called(name))
        if isinstance(function, ast.Attribute) and name in _FILLING:
            _fill(function.value, said)


def _fill(container: ast.expr, said: tuple[set[str], ...]) -> None:
    """Record a write into `container`, or into an item of it."""
    while isinstance(container, ast.Subscript):
        container = container.value
    name = last_name(container)
    for names in said if name else ():
        names.add(filling(name))


def _visit_class(node: ast.ClassDef, said: tuple[set[str], ...], found: Footprint) -> None:
    """Record a class: its bases and special methods are mentioned by its name, its other methods by
    their own names."""
    extended: set[str] = set()
    names, attributes = {node.name}, {asked(node.name)}
    found.bindings.append(Binding(names, attributes, extended, 0, held=False))
    methods = found.methods.setdefault(node.name, {})
    body = found.bodies.setdefault(node.name, set())
    for part in (*node.bases, *node.keywords):
        _visit(part, (*said, extended), 0, found)
    for part in (*node.decorator_list, *node.body):
        if not isinstance(part, Definition):
            known = len(found.bindings)
            within: set[str] = set()
            _visit(part, (*said, within), 0, found)
            for binding in found.bindings[known:]:
                binding.attributes |= set(map(asked, binding.names))
                binding.said |= _of_class(binding.said)
            for around in said:
                around |= _of_class(within)
            body |= within | _of_class(within)
            continue
        _visit(part, said, METHODS, found)
        mentioned = found.definitions[key_of(part)][1]
        if part.name.startswith("__") or part.name in found.called_by_calls:
            found.bindings.append(Binding(names, attributes, mentioned, 0, held=False))
        else:
            methods[part.name] = mentioned
        if part.name == "__init__":
            mentioned |= extended  # it may call the base class's
        elif extended:
            found.inheriting.append((mentioned, extended))
        for decorator in part.decorator_list:
            mentioned |= {asked(it.id) for it in descend(decorator) if isinstance(it, ast.Name)}


def _of_class(said: set[str]) -> set[str]:
    """Methods possibly meant by variables in a class body."""
    return {asked(name) for name in said if name.isidentifier()}


_IMPLIED = frozenset({"__init__"})
"""Methods that calling the class runs."""

_FILLING = frozenset({"add", "append", "insert", "setdefault", "update"})
"""Methods that insert into a container."""

_NO_NAMES = frozenset({str, int, type(None), ast.Load, ast.Store, ast.Del, ast.Pass})
"""Node types without mentions."""

_NO_NAMES_OR_STRINGS = _NO_NAMES | {ast.Constant}


def _places(targets: list[ast.expr], scope: int) -> set[Place]:
    """The places of assignment targets."""
    names, attributes = _targets(targets)
    return {(scope, name) for name in names} | {(ATTRIBUTE, name) for name in attributes}


def _targets(targets: list[ast.expr]) -> tuple[set[str], set[str]]:
    """The variables and attributes of assignment targets."""
    names, attributes = set(), set()
    for target in targets:
        for part in descend(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                attributes.add(asked(part.attr))
    return names, attributes
