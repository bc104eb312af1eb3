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
class Survey:
    """What a module mentions, gathered in one walk."""

    loaded: set[str] = field(default_factory=set)
    """The names and attributes that are read."""
    imports: list[Import] = field(default_factory=list)
    bindings: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """The names that assignments and ``with`` blocks bind, and what their values mention."""
    definitions: dict[int, tuple[str, set[str]]] = field(default_factory=dict)
    """Each function's name, and what it mentions, by the identity of its node."""


def survey(tree: ast.Module) -> Survey:
    """Walk `tree` once."""
    found = Survey()
    _visit(tree, (), found)
    return found


def _visit(node: ast.AST, said: tuple[set[str], ...], found: Survey) -> None:
    kind = type(node)
    if kind is ast.Constant:
        return
    if kind is ast.Name or kind is ast.Attribute:
        named: Any = node
        name = named.id if kind is ast.Name else named.attr
        if type(named.ctx) is ast.Load:
            found.loaded.add(name)
        for names in said:
            names.add(name)
        if kind is ast.Attribute:
            _visit(named.value, said, found)
        return
    if isinstance(node, ast.keyword) and node.arg is not None:
        for names in said:
            names.add(node.arg)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        found.imports.append(node)
        words = [part for alias in node.names for part in alias.name.split(".")]
        if isinstance(node, ast.ImportFrom) and node.module:
            words.extend(node.module.split("."))
        for names in said:
            names.update(words)
        return
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        own: set[str] = set()
        found.definitions[id(node)] = (node.name, own)
        said = (*said, own)
    elif isinstance(node, ast.Assign):
        value: set[str] = set()
        found.bindings.append((_targets(node.targets), value))
        for target in node.targets:
            _visit(target, said, found)
        _visit(node.value, (*said, value), found)
        return
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        value = set()
        found.bindings.append((_targets([node.optional_vars]), value))
        _visit(node.context_expr, (*said, value), found)
        _visit(node.optional_vars, said, found)
        return
    for part in node.__dict__.values():
        if type(part) is list:
            for item in part:
                if isinstance(item, ast.AST):
                    _visit(item, said, found)
        elif isinstance(part, ast.AST) and not isinstance(part, ast.expr_context):
            _visit(part, said, found)


def relevant(
    seen: Survey,
    words: Vocabulary,
    helps: Callable[[Import], bool],
    comes_from_project: Callable[[Import], bool],
    *,
    loops: bool = False,
) -> set[int]:
    """The ids of the definitions that may hand something to workers, or hold another pitfall.

    `helps` says whether an import brings in a project module that starts workers.
    """
    interesting = set(words.starters | words.loops if loops else words.starters)
    for node in seen.imports:
        module = node.module if isinstance(node, ast.ImportFrom) else None
        tops = {(module or "").partition(".")[0]} | (
            {alias.name.partition(".")[0] for alias in node.names} if module is None else set()
        )
        for top in tops:
            interesting |= words.beside.get(top, frozenset())
        if tops & words.packages or helps(node):
            interesting |= {alias.asname or alias.name for alias in node.names}
        interesting |= {
            alias.asname
            for alias in node.names
            if alias.asname and alias.name.rpartition(".")[2] in interesting
        }
    starting = _mentioning(seen, interesting)
    if not loops:
        starting |= {id_ for id_, (name, _) in seen.definitions.items() if name in words.hooks}
    if loops or not starting or not _imported(seen).isdisjoint(words.frameworks):
        return starting
    # Without a framework here, it has to come from another module; or nothing of one matters.
    wanted = set(words.matters)
    for node in seen.imports:
        names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        module = node.module if isinstance(node, ast.ImportFrom) else None
        told = not words.matters.isdisjoint((module or "").split("."))
        if told or "*" in names or comes_from_project(node):
            wanted |= names
    return starting if "*" in wanted else starting & _mentioning(seen, wanted)


def _imported(seen: Survey) -> set[str]:
    """The packages that are imported."""
    return {
        name.partition(".")[0]
        for node in seen.imports
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }


def _mentioning(seen: Survey, words: set[str]) -> set[int]:
    """The ids of the definitions that mention one of `words`, or what does in turn."""
    found = set(words)
    waiting = [*seen.bindings, *(({name}, said) for name, said in seen.definitions.values())]
    changed = True
    while changed:
        changed = False
        left = []
        for gives, said in waiting:
            if found.isdisjoint(said):
                left.append((gives, said))
            else:
                found |= gives
                changed = True
        waiting = left
    return {ident for ident, (_, said) in seen.definitions.items() if not found.isdisjoint(said)}


def _targets(targets: list[ast.expr]) -> set[str]:
    found = set()
    for target in targets:
        for part in descend(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                found.add(part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                found.add(part.attr)
    return found
