"""Which functions of a module can lead to a pitfall at all, told by the names they mention."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradguard_lint.domain.starts import Vocabulary
from gradguard_lint.engine.tree import descend
from pytest_gradguard.records import field, fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom


@fields
class Binding:
    """Names that a statement gives.

    Attributes:
        names: variables, and functions within functions.
        attributes: attributes, and what is known by its name wherever it is used.
        said: what the value mentions.
        scope: the outermost function around it; 0 where there is none.
    """

    names: set[str]
    attributes: set[str]
    said: set[str]
    scope: int


@fields
class Survey:
    """What a module mentions, gathered in one walk."""

    loaded: set[str] = field(default_factory=set)
    """The names and attributes that are read."""
    imports: list[Import] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    """What assignments, ``with`` blocks and definitions give."""
    definitions: dict[int, tuple[str, set[str]]] = field(default_factory=dict)
    """Each function's name, and what it mentions, by the identity of its node."""
    shared: set[str] = field(default_factory=set)
    """The variables that a function declares to be those of the module."""
    inheriting: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """What each method mentions, and what its class extends."""
    called: frozenset[str] = frozenset()
    """The methods that calling an object calls."""


def survey(tree: ast.Module, called: frozenset[str]) -> Survey:
    """Walk `tree` once; `called` are the methods that calling an object calls."""
    found = Survey(called=called)
    _visit(tree, (), 0, found)
    return found


def _visit(node: ast.AST, said: tuple[set[str], ...], scope: int, found: Survey) -> None:
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
        for names in said:
            names.add(named.attr)
        _visit(named.value, said, scope, found)
        return
    if kind is ast.keyword:
        if named.arg is not None:
            for names in said:
                names.add(named.arg)
    elif kind is ast.Import or kind is ast.ImportFrom:
        found.imports.append(named)
        words = [part for alias in named.names for part in alias.name.split(".")]
        if kind is ast.ImportFrom and named.module:
            words.extend(named.module.split("."))
        for names in said:
            names.update(words)
        return
    elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
        own: set[str] = set()
        found.definitions[id(node)] = (named.name, own)
        within = {named.name} if scope else set()
        known_as = {named.name} - within - _IMPLIED
        found.bindings.append(Binding(within, known_as, own, scope))
        said = (*said, own)
        scope = scope or id(node)
    elif kind is ast.ClassDef:
        _visit_class(named, said, found)
        return
    elif kind is ast.Global:
        found.shared.update(named.names)
    elif kind is ast.Assign:
        value: set[str] = set()
        found.bindings.append(Binding(*_targets(named.targets), value, scope))
        for target in named.targets:
            _visit(target, said, scope, found)
        _visit(named.value, (*said, value), scope, found)
        return
    elif kind is ast.withitem and named.optional_vars is not None:
        value = set()
        found.bindings.append(Binding(*_targets([named.optional_vars]), value, scope))
        _visit(named.context_expr, (*said, value), scope, found)
        _visit(named.optional_vars, said, scope, found)
        return
    for part in node.__dict__.values():
        if type(part) is list:
            for item in part:
                if type(item) not in _NO_NAMES:
                    _visit(item, said, scope, found)
        elif isinstance(part, ast.AST) and type(part) not in _NO_NAMES:
            _visit(part, said, scope, found)


def _visit_class(node: ast.ClassDef, said: tuple[set[str], ...], found: Survey) -> None:
    """A class is known by its name: what it extends, and what its special methods do (and those
    that calling an object calls), matters where that is mentioned. Its other methods are known by
    their own names, wherever it stands."""
    extended: set[str] = set()
    found.bindings.append(Binding(set(), {node.name}, extended, 0))
    for part in (*node.bases, *node.keywords):
        _visit(part, (*said, extended), 0, found)
    for part in (*node.decorator_list, *node.body):
        _visit(part, said, 0, found)
        if not isinstance(part, Definition):
            continue
        mentioned = found.definitions[id(part)][1]
        if part.name.startswith("__") or part.name in found.called:
            found.bindings.append(Binding(set(), {node.name}, mentioned, 0))
        if part.name == "__init__":
            mentioned |= extended  # it may be what calls that of the class it extends
        elif extended:
            found.inheriting.append((mentioned, extended))


_IMPLIED = frozenset({"__init__"})
"""Methods that are called by the name of their class."""

_NO_NAMES = frozenset({str, type(None), ast.Constant, ast.Load, ast.Store, ast.Del, ast.Pass})
"""What stands in trees, and mentions nothing."""


def relevant(
    seen: Survey,
    data: bytes,
    words: Vocabulary,
    bringing: Callable[[Import], set[str]],
    comes_from_project: Callable[[Import], bool],
    *,
    loops: bool = False,
) -> set[int]:
    """The ids of the definitions that may hand something to workers, or hold another pitfall.

    `data` is the module as it was read; `bringing` tells the names that an import gives to what
    starts workers in a module of the project.
    """
    interesting = set(words.starters | words.loops if loops else words.starters)
    for node in seen.imports:
        module = node.module if isinstance(node, ast.ImportFrom) else None
        tops = {(module or "").partition(".")[0]} | (
            {alias.name.partition(".")[0] for alias in node.names} if module is None else set()
        )
        for top in tops:
            interesting |= words.beside.get(top, frozenset())
        if tops & words.packages:
            interesting |= {alias.asname or alias.name for alias in node.names}
        else:
            brought = bringing(node)
            interesting |= brought
            for mentioned, extended in seen.inheriting if brought else ():
                mentioned |= brought & extended  # it may call what it inherits
    imported = _imported(seen)
    if any(group in name for name in imported | seen.loaded for group in words.groups) or any(
        map(comes_from_project, seen.imports)
    ):
        interesting |= words.ranks
    interesting |= {
        alias.asname
        for node in seen.imports
        for alias in node.names
        if alias.asname and alias.name.rpartition(".")[2] in interesting
    }
    starting = _mentioning(seen, interesting)
    if not loops:
        starting |= {id_ for id_, (name, _) in seen.definitions.items() if name in words.hooks}
    tops = {name.partition(".")[0] for name in imported}
    if loops or not starting or not tops.isdisjoint(words.frameworks):
        return starting
    # Without a framework here, it has to come from another module; or nothing of one matters.
    wanted = set(words.matters)
    for string, beside in words.matters_beside.items():
        if any(f"{quote}{string}{quote}".encode() in data for quote in "'\""):
            wanted |= beside
    for node in seen.imports:
        names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        module = node.module if isinstance(node, ast.ImportFrom) else None
        told = not words.matters.isdisjoint((module or "").split("."))
        if told or "*" in names or comes_from_project(node):
            wanted |= names
    return starting if "*" in wanted else starting & _mentioning(seen, wanted)


def _imported(seen: Survey) -> set[str]:
    """The dotted names that are imported."""
    return {
        alias.name if isinstance(node, ast.Import) else f"{node.module or ''}.{alias.name}"
        for node in seen.imports
        for alias in node.names
    }


def _mentioning(seen: Survey, words: set[str]) -> set[int]:
    """The ids of the definitions that mention one of `words`, or what does in turn."""
    found = set(words)
    variables: dict[int, set[str]] = {}
    """The same, of the variables of a function: elsewhere their names mean something else."""
    waiting = seen.bindings
    changed = True
    while changed:
        changed = False
        left = []
        for binding in waiting:
            own = variables.get(binding.scope)
            if found.isdisjoint(binding.said) and (own is None or own.isdisjoint(binding.said)):
                left.append(binding)
                continue
            changed = True
            found |= binding.attributes
            if binding.scope:
                variables.setdefault(binding.scope, set()).update(binding.names)
                found |= binding.names & seen.shared
            else:
                found |= binding.names
        waiting = left
    return {ident for ident, (_, said) in seen.definitions.items() if not found.isdisjoint(said)}


def _targets(targets: list[ast.expr]) -> tuple[set[str], set[str]]:
    """The variables and the attributes that are set."""
    names, attributes = set(), set()
    for target in targets:
        for part in descend(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                attributes.add(part.attr)
    return names, attributes
