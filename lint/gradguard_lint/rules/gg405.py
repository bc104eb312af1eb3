"""``Parallel(backend="dask")`` never works."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Change, Fix, RemoveArgument, UnderWith
from gradguard_lint.fixes.written import bindings, dotted, importing, is_open, keyword, source_of
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Report, sites_to
from gradguard_lint.words import words

CODE = "GG405"


def check(program: Program) -> Iterator[Report]:
    for effect in program.library_uses("dask backend"):
        yield Report(
            effect.site,
            '`Parallel(backend="dask")` always raises an error: joblib takes its dask backend from '
            "`parallel_config` only.",
            fix=_by_context(program, effect.site),
        )


def _by_context(program: Program, site: Site) -> Fix | None:
    """``with parallel_config(backend="dask")`` around the statement."""
    node, statement, module = site.node, site.statement, site.module
    if not isinstance(node, ast.Call) or not isinstance(statement, ast.stmt):
        return None
    given = keyword(node, "backend")
    backend = given.value if given is not None else None
    if given is None and len(node.args) == 2 and not is_open(node):
        backend = node.args[1]
    if any(
        isinstance(later, (ast.Lambda, ast.GeneratorExp)) and node in ast.walk(later)
        for later in ast.walk(statement)
    ):
        return None  # its body runs after the block
    if backend is None or not (isinstance(backend, ast.Constant) or _is_constant(module, backend)):
        return None
    imported: tuple[Change, ...] | None = ()
    if isinstance(node.func, ast.Attribute):
        config = f"{ast.unparse(node.func.value)}.parallel_config"
    else:
        config = "parallel_config"
        imported = importing(module, "parallel_config", "joblib")
    if imported is None:
        return None
    source = f"{config}(backend={source_of(module, backend)})"
    index = 0
    below: list[ast.AST] = [statement]
    own: str | None = None
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        items = statement.items  # it needs the client, which an earlier item may create
        index = next((i for i, it in enumerate(items) if node in ast.walk(it.context_expr)), 0)
        name = items[index].optional_vars
        below, own = [*items[index:], *statement.body], "" if name is None else ast.unparse(name)
    changes = (
        RemoveArgument(module, node, 1 if given is None else "backend"),
        UnderWith(module, statement, source, index),
        *imported,
    )
    parts = [part for it in below for part in ast.walk(it)]
    leaves = any(isinstance(part, _SUSPENDS) or getattr(part, "is_async", 0) for part in parts)
    known = own is None or all(_calls_known(site, part, own) for part in parts)
    alone = known and not leaves and not _changes_others(program, site, parts)
    return Fix("safe" if alone else "unsafe", "name the backend in `parallel_config`", changes)


_SUSPENDS = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
"""Nodes at which other code may run inside the block, with its backend."""

_CHOOSING = words("joblib sklearn dask distributed")
"""Packages whose functions use a context manager's backend."""


def _changes_others(program: Program, site: Site, parts: Sequence[ast.AST]) -> bool:
    """Whether the block changes the backend of a call other than that at `site`."""
    inside = {id(part) for part in parts}
    makers = [
        call.traits.maker.node
        for call in program.calls
        if call.library == "joblib" and call.traits.maker is not None
        if any(id(it.node) in inside for it in sites_to(call))
    ]
    makers += [
        part
        for part in parts
        if isinstance(part, ast.Call)
        if dotted(site.module, part.func).partition(".")[0] in _CHOOSING
        if not _is_delayed(site, part)
    ]
    return any(
        it is not site.node
        and not (isinstance(it, ast.Call) and (keyword(it, "backend") or it.args[1:]))
        for it in makers
    )


def _calls_known(site: Site, part: ast.AST, own: str) -> bool:
    """Whether `part` calls only imported names, builtins or `own`."""
    if not isinstance(part, ast.Call) or part.func is site.node or dotted(site.module, part.func):
        return True
    if isinstance(part.func, ast.Call):
        return _is_delayed(site, part.func)
    return isinstance(part.func, ast.Name) and (
        part.func.id == own or hasattr(builtins, part.func.id)
    )


def _is_delayed(site: Site, call: ast.Call) -> bool:
    return dotted(site.module, call.func).rpartition(".")[2] == "delayed"


def _is_constant(module: Module, node: ast.expr) -> bool:
    """Whether `node` is a constant at the top level of `module`."""
    return (
        isinstance(node, ast.Name)
        and bindings(module.tree, node.id) == 1
        and any(
            isinstance(it, ast.Assign)
            and isinstance(it.value, ast.Constant)
            and ast.unparse(it.targets[0]) == node.id
            for it in module.tree.body
        )
        and not any(isinstance(it, ast.arg) and it.arg == node.id for it in ast.walk(module.tree))
    )
