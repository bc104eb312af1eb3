"""The repair of forked workers: fresh processes, if these can run their tasks."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.fixes.changes import Change, Fix, Replace, SetKeyword
from gradguard_lint.fixes.fresh import SHARED, differs
from gradguard_lint.fixes.imported_code import DEFINITIONS, on_import
from gradguard_lint.fixes.recipes import made_by, with_backend
from gradguard_lint.fixes.sending import cannot_be_sent
from gradguard_lint.fixes.task_functions import function_of, is_local
from gradguard_lint.fixes.written import bindings, dotted, importing, keyword, repr_of
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

_PACKAGES = words("multiprocessing torch.multiprocessing")
_WORKERS = words("Pool Process")
_PICKLES_BY_NAME = ("multiprocessing", "torch.multiprocessing", "concurrent.futures")
"""The libraries whose workers import their function."""


def without_fork(call: ParallelCall) -> Fix | None:
    """The repair by which the workers of `call` become fresh processes instead of forked ones."""
    node = made_by(call)
    if node is None or call.traits.maker is None:
        return None
    if call.library == "joblib":
        changes = with_backend(call, "loky")
        if not changes or any(
            differs(call, task) or cannot_be_sent(call, task) for task in call.tasks
        ):
            return None
        return Fix("unsafe", "run the tasks in loky workers", changes)
    if not _can_spawn(call, node):
        return None
    changes = _spawned(call.traits.maker.module, node)
    return Fix("unsafe", "start the workers with spawn", changes) if changes else None


def advice_case(call: ParallelCall) -> str:
    """The case of advice for workers that must be fresh processes: the library, or a function that
    these could not unpickle."""
    by_name = call.library in _PICKLES_BY_NAME
    functions = [function_of(task) for task in call.tasks] if by_name else []
    local = any(function is not None and is_local(function) for function in functions)
    return "local function" if local else call.library


def _spawned(module: Module, node: ast.Call) -> tuple[Change, ...]:
    """The changes by which the pool, executor or process of `node` is spawned."""
    given = keyword(node, "mp_context") or keyword(node, "context")
    if given is not None:
        return _spawning_context(module, given.value)
    full = dotted(module, node.func)
    if not full:
        base = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        changes = _spawning_context(module, base)
    elif full.endswith(".ProcessPoolExecutor"):
        imported = importing(module, "multiprocessing")
        if len(node.args) > 1 or imported is None:
            return ()
        how = f"multiprocessing.get_context({repr_of(module, 'spawn')})"
        changes = (SetKeyword(module, node, "mp_context", how), *imported)
    elif _is_of_context(full, _WORKERS):
        changes = _from_spawn(module, node.func, full)
    else:
        return ()
    for call in _shared(module) if changes else ():
        more = _from_spawn(module, call.func, dotted(module, call.func))
        if not more:
            return ()
        changes += tuple(change for change in more if change not in changes)
    return changes


def _from_spawn(module: Module, function: ast.expr, full: str) -> tuple[Change, ...]:
    """The changes by which `function`, the dotted name `full`, is that of the spawn context."""
    package, _, name = full.rpartition(".")
    how = f"get_context({repr_of(module, 'spawn')}).{name}"
    if isinstance(function, ast.Attribute):
        return (Replace(module, function, f"{ast.unparse(function.value)}.{how}"),)
    imported = importing(module, "get_context", package)
    return () if imported is None else (Replace(module, function, how), *imported)


def _spawning_context(module: Module, context: ast.expr) -> tuple[Change, ...]:
    """The changes by which `context`, from ``get_context``, is the spawn context."""
    if isinstance(context, ast.Name):
        made = [
            node.value
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == context.id
        ]
        if len(made) != 1 or bindings(module.tree, context.id) != 1:
            return ()
        context = made[0]
    if not isinstance(context, ast.Call) or not _is_of_context(
        dotted(module, context.func), {"get_context"}
    ):
        return ()
    spawn = repr_of(module, "spawn")
    if len(context.args) == 1:
        return (Replace(module, context.args[0], spawn),)
    return (SetKeyword(module, context, "method", spawn),)


def _is_of_context(full: str, names: Collection[str]) -> bool:
    package, _, name = full.rpartition(".")
    return package in _PACKAGES and name in names


def _shared(module: Module) -> Iterator[ast.Call]:
    """The calls in `module` that create objects with locks in the default context."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _is_of_context(dotted(module, node.func), SHARED):
            yield node


def _can_spawn(call: ParallelCall, maker: ast.Call) -> bool:
    """Whether a fresh process can run the tasks: it can import the program, and unpickle them."""
    site = call.site
    if not _guarded(site.module, call):
        return False
    top = {node.name for node in site.module.tree.body if isinstance(node, DEFINITIONS)}
    functions = {node.name for node in ast.walk(site.module.tree) if isinstance(node, DEFINITIONS)}
    given = [*maker.args, *(item.value for item in maker.keywords)]
    names = {item.id for item in given if isinstance(item, ast.Name)}
    if any(isinstance(item, ast.Lambda) for item in given) or names & (functions - top):
        return False  # an initializer that cannot be pickled
    for task in call.tasks:
        function = function_of(task)
        if function is None or is_local(function):
            return False
        if function.module.is_notebook:
            return False  # the process cannot import a notebook
        if cannot_be_sent(call, task) or differs(call, task, names):
            return False
    return True


def _guarded(module: Module, call: ParallelCall) -> bool:
    """Whether importing `module` does not run the call."""
    own = {node.name for node in module.tree.body if isinstance(node, DEFINITIONS)}
    return not any(
        node is call.site.node
        or (
            call.root == 1
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in own
        )
        for statement in on_import(module)
        for node in ast.walk(statement)
    )
