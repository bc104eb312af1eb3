"""Repairs that several rules state: other workers for a call, and what may be said of a worker."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from gradguard_lint.domain.effects import ParallelCall, Program, TaskRun
from gradguard_lint.domain.values import Bound, Function, Partial, Site, Value
from gradguard_lint.fixes.changes import (
    Change,
    Fix,
    Import,
    RemoveKeyword,
    Replace,
    SetKeyword,
)
from gradguard_lint.reading.source import Module

POOLS = ("Pool", "Process", "ProcessPoolExecutor")


# -- what the source says --------------------------------------------------------------------------


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument `name` of `call`."""
    return next((item for item in call.keywords if item.arg == name), None)


def is_open(call: ast.Call) -> bool:
    """Whether `call` unpacks arguments that may be any."""
    return any(item.arg is None for item in call.keywords) or any(
        isinstance(item, ast.Starred) for item in call.args
    )


def argument(site: Site, written: str) -> ast.expr | None:
    """The argument of the call at `site` that its source, or its keyword, calls `written`."""
    call = site.node
    if not isinstance(call, ast.Call):
        return None
    found = [item for item in call.args if ast.unparse(item) == written]
    found += [item.value for item in call.keywords if item.arg == written]
    return found[0] if len(found) == 1 else None


def imports_of(module: Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements at the top of `module`, in no function or branch."""
    for statement in module.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement


def binds(module: Module, name: str) -> str | None:
    """What an import at the top of `module` binds `name` to, as a dotted name."""
    for statement in imports_of(module):
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                package = getattr(statement, "module", None)
                return f"{package}.{alias.name}" if package else alias.name
    return None


def spelled(module: Module, full: str) -> str | None:
    """The expression that means the library's name `full` in `module`, by what it imports."""
    before, after = full, ""
    while before:
        for statement in imports_of(module):
            for alias in statement.names:
                name = alias.asname or alias.name
                if binds(module, name) == before:
                    return name + after
        before, _, last = before.rpartition(".")
        after = f".{last}{after}"
    return None


def source_of(module: Module, node: ast.expr) -> str:
    """`node` as the source writes it."""
    return ast.get_source_segment(module.text, node) or ast.unparse(node)


def is_bound(module: Module, name: str) -> bool:
    """Whether `module` gives `name` a meaning of its own anywhere."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == name
        ):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == name:
            return True
    return False


def importing(module: Module, name: str, package: str | None = None) -> tuple[Change, ...] | None:
    """The changes after which `name` means that import in `module`; None where it cannot."""
    full = f"{package}.{name}" if package else name
    bound = binds(module, name)
    if bound == full:
        return ()
    if bound is not None or is_bound(module, name):
        return None
    return (Import(module, module.tree, name, package),)


def evaluable(module: Module, node: ast.expr) -> bool:
    """Whether `node` means the same everywhere in `module`: imported names and constants."""
    return all(
        binds(module, inner.id) is not None
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name)
    )


# -- the worker's function -------------------------------------------------------------------------


def function_of(task: TaskRun) -> Function | None:
    """The function that the task runs, where it is one."""
    found = set(_functions(task.task.function))
    return found.pop() if len(found) == 1 else None


def _functions(value: Value) -> Iterator[Function | None]:
    for atom in value.atoms:
        if isinstance(atom, Function):
            yield atom
        elif isinstance(atom, Bound):
            yield atom.function
        elif isinstance(atom, Partial):
            yield from _functions(atom.function)
        else:
            yield None


def handed_out_alone(
    program: Program, function: Function, allowed: Callable[[ParallelCall], bool]
) -> bool:
    """Whether the function is named only where calls that are `allowed` hand it out."""
    if isinstance(function.node, ast.Lambda):
        return False
    tasks = [task for call in program.calls for task in call.tasks if function_of(task) == function]
    sites = [task.task.site for task in tasks if allowed(task.call)]
    modules = {id(function.module): function.module}
    modules |= {id(task.task.site.module): task.task.site.module for task in tasks}
    inside = {id(node) for site in sites for node in ast.walk(site.node)}
    return bool(sites) and all(
        id(node) in inside
        for module in modules.values()
        for node in _mentions(module.tree, function.name)
    )


def _mentions(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if name == (node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)):
            yield node


# -- other workers ---------------------------------------------------------------------------------


def made_by(call: ParallelCall) -> ast.Call | None:
    """The call that makes what runs the tasks of `call`."""
    node = call.maker.node if call.maker is not None else None
    return node if isinstance(node, ast.Call) and not is_open(node) else None


def in_threads(call: ParallelCall) -> tuple[Change, ...]:
    """The changes after which joblib runs the tasks of `call` in threads; none where it cannot."""
    return _backend(call, "threading")


def _backend(call: ParallelCall, name: str) -> tuple[Change, ...]:
    node = made_by(call)
    if node is None or call.maker is None or call.library != "joblib":
        return ()
    module = call.maker.module
    literal = repr_of(module, name)
    changes: list[Change] = [SetKeyword(module, node, "backend", literal)]
    if len(node.args) > 1:
        changes = [Replace(module, node.args[1], literal)]
    if keyword(node, "prefer") is not None:  # it would be of no effect beside the other
        changes.append(RemoveKeyword(module, node, "prefer"))
    if keyword(node, "require") is not None:
        return ()
    return tuple(changes)


def repr_of(module: Module, text: str) -> str:
    """`text` as a literal, in the quotes that the module prefers."""
    data = module.data
    quote = "'" if data.count(b"'") > 2 * data.count(b'"') else '"'
    return f"{quote}{text}{quote}"


def without_fork(program: Program, call: ParallelCall) -> Fix | None:
    """The repair after which the workers of `call` are fresh processes, and not forked."""
    node = made_by(call)
    if node is None or call.maker is None:
        return None
    if call.library == "joblib":
        changes = _backend(call, "loky")
        return Fix("unsafe", "run the tasks in loky workers", changes) if changes else None
    if not can_spawn(program, call):
        return None
    changes = _spawned(call.maker.module, node)
    return Fix("unsafe", "start the workers with spawn", changes) if changes else None


def _spawned(module: Module, node: ast.Call) -> tuple[Change, ...]:
    """The changes after which the pool, executor or process that `node` makes is spawned."""
    spawn = repr_of(module, "spawn")
    context = keyword(node, "mp_context") or keyword(node, "context")
    if context is not None:
        node_of_context: ast.expr = context.value
    elif isinstance(node.func, ast.Attribute):
        node_of_context = node.func.value
    else:
        node_of_context = node.func
    if isinstance(node_of_context, ast.Call):  # get_context("fork")
        if len(node_of_context.args) == 1:
            return (Replace(module, node_of_context.args[0], spawn),)
        return (SetKeyword(module, node_of_context, "method", spawn),)
    if context is not None:
        return ()
    if isinstance(node.func, ast.Name):
        full = binds(module, node.func.id)
        if full is None:
            return ()
        package, _, name = full.rpartition(".")
    else:
        full = binds(module, ast.unparse(node_of_context))
        if full is None:
            return ()
        package, name = full, ast.unparse(node.func).rpartition(".")[2]
    if name == "ProcessPoolExecutor":
        if len(node.args) > 1:
            return ()
        imported = importing(module, "multiprocessing")
        how = f"multiprocessing.get_context({spawn})"
        return () if imported is None else (SetKeyword(module, node, "mp_context", how), *imported)
    if name not in POOLS or package not in ("multiprocessing", "torch.multiprocessing"):
        return ()
    if isinstance(node.func, ast.Attribute):
        how = f"{ast.unparse(node_of_context)}.get_context({spawn}).{name}"
        return (Replace(module, node.func, how),)
    imported = importing(module, "get_context", package)
    how = f"get_context({spawn}).{name}"
    return () if imported is None else (Replace(module, node.func, how), *imported)


def can_spawn(program: Program, call: ParallelCall) -> bool:
    """Whether a fresh process can run the tasks: it imports the program, and finds their parts."""
    site = call.site
    if not _guarded(site.module, call):
        return False
    for task in call.tasks:
        function = function_of(task)
        if function is None or isinstance(function.node, ast.Lambda):
            return False
        if function.frame.parent is not None and not function.frame.is_class:
            return False  # it is defined in another one, and cannot be pickled
        if _made_by_the_program(function.module) & _names_in(function.module, function.node):
            return False
    return True


def _made_by_the_program(module: Module) -> set[str]:
    """The globals that `module` has only where it is the program: no import makes them."""
    made: set[str] = set()
    imported: set[str] = set()
    for statement in module.tree.body:
        names = made if _is_guard(statement) else imported
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.alias):
                names.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    changed = {
        name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
        for name in node.names
    }
    return (made - imported) | changed


def _names_in(module: Module, function: ast.AST) -> set[str]:
    """The globals that `function` reads, and those that it calls of the same module."""
    functions = {
        node.name: node
        for node in module.tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    found: set[str] = set()
    waiting = [function]
    while waiting:
        read: set[str] = set()
        own: set[str] = set()
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.arg):
                own.add(node.arg)
            elif isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else own).add(node.id)
        new = read - own - found
        found |= new
        waiting += (functions[name] for name in new & functions.keys())
    return found


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _guarded(module: Module, call: ParallelCall) -> bool:
    """Whether importing `module` does not make the call."""
    own = {
        node.name
        for node in module.tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    for statement in module.tree.body:
        if _is_guard(statement) or isinstance(
            statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        ):
            continue
        for node in ast.walk(statement):
            if node is call.site.node or (
                call.root == 1
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in own
            ):
                return False
    return True
