"""Properties of functions that workers run, and of their other callers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator

from gradguard_lint.domain.effects import ParallelCall, Program, TaskRun
from gradguard_lint.domain.values import (
    Bound,
    Class,
    External,
    Function,
    Partial,
    Site,
    TaskCall,
    Value,
)
from gradguard_lint.engine.tree import last_name
from gradguard_lint.fixes.written import dotted, is_bound
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words


def function_of(task: TaskRun | TaskCall) -> Function | None:
    """The function of the task, if there is exactly one."""
    sent = task.task if isinstance(task, TaskRun) else task
    found = set(_functions(sent.function))
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


def is_local(function: Function) -> bool:
    """Whether it is a lambda, or defined in a function: pickle cannot find it by name."""
    inside = function.frame.parent is not None and not function.frame.is_class
    return isinstance(function.node, ast.Lambda) or inside


def handed_out_alone(
    program: Program, function: Function, allowed: Callable[[ParallelCall], bool]
) -> bool:
    """Whether the function is mentioned only in calls that dispatch it and are all `allowed`:
    another path may lead to the same call."""
    if isinstance(function.node, ast.Lambda) or function.wraps is not None:
        return False  # a decorator may use the original function otherwise
    if any(_may_be(task, function) for task in program.in_line) or any(
        effect.worker is None and _is_of(effect.site, function) for effect in program.effects
    ):
        return False  # by `map`, for example, without a pool
    tasks = [task for call in program.calls for task in call.tasks if _may_be(task.task, function)]
    modules = {id(function.module): function.module}
    modules |= {id(task.task.site.module): task.task.site.module for task in tasks}
    inside = {id(node) for task in tasks for node in ast.walk(task.task.site.node)}
    return all(allowed(task.call) for task in tasks) and all(
        id(node) in inside
        for module in modules.values()
        for node in _mentions(module.tree, function.name)
    )


def _may_be(task: TaskCall, function: Function) -> bool:
    """Whether the task may run `function`."""
    return any(it is not None and it.node is function.node for it in _functions(task.function))


def on_the_way(call: ParallelCall, first: int = 0) -> list[Function]:
    """The functions on the call stack of `call`, without the `first` scopes."""
    frames = [*(step.frame for step in call.chain), call.frame][first:]
    return [it.function for it in frames if it is not None and it.function is not None]


def _is_of(site: Site, function: Function) -> bool:
    """Whether `site` is in the code of `function`."""
    own = site.module is function.module and site.function == function.name
    return own and site.stands_in(function.node)


def leads_only_to(function: Function, calls: Iterable[ParallelCall]) -> bool:
    """Whether its module mentions the function only in calls that lead to one of `calls`."""
    steps = (step.site.node for call in calls for step in call.chain)
    called = [node.func if isinstance(node, ast.Call) else node for node in steps]
    inside = {id(part) for node in called if isinstance(node, ast.expr) for part in ast.walk(node)}
    named = _mentions(function.module.tree, function.name)
    return all(id(node) in inside for node in named)


def callers_are_seen(function: Function) -> bool:
    """Whether only code that mentions the function can call it: no library, and no registry."""
    node, owner = function.node, function.owner
    if isinstance(node, ast.Lambda) or not all(
        _keeps(function.module, decorator) for decorator in node.decorator_list
    ):
        return False
    if owner is not None and (_is_special(node.name) or not _is_plain(owner)):
        return False  # Python may call it, or a base class
    return not any(_by_name(inner, node.name) for inner in ast.walk(function.module.tree))


def _keeps(module: Module, decorator: ast.expr) -> bool:
    """Whether a decorator certainly registers the function nowhere."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Name) and called.id in _OF_METHODS:
        return not is_bound(module, called.id)
    return dotted(module, called).partition(".")[0] in _HARMLESS


_OF_METHODS = words("staticmethod classmethod property")
_HARMLESS = words("torch functools contextlib typing abc")
"""Packages whose decorators wrap a function, and do not register it."""

_DYNAMIC = words("globals locals vars eval exec attrgetter methodcaller getmembers __dict__")


def _is_plain(owner: Class) -> bool:
    """Whether all base classes of `owner` are in its own module."""
    return all(
        len(cls.bases) == len(cls.node.bases)  # unknown bases are left out
        and cls.module is owner.module
        and all(isinstance(base, Class) or base == _OBJECT for base in cls.bases)
        for cls in (owner, *owner.above)
    )


_OBJECT = External("builtins.object")


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _by_name(node: ast.AST, name: str) -> bool:
    """Whether `node` may look up the function `name` by a string."""
    if isinstance(node, ast.Constant):
        return node.value == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)
    return last_name(node) in _DYNAMIC


def _mentions(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if last_name(node) == name:
            yield node


def reached(module: Module, function: ast.AST) -> Iterator[ast.AST]:
    """`function`, and the functions of `module` that it mentions, transitively."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    known = {node.name: node for node in ast.walk(module.tree) if isinstance(node, kinds)}
    waiting = [function]
    while waiting:
        node = waiting.pop()
        yield node
        for inner in ast.walk(node):
            name = last_name(inner)
            if name in known:
                waiting.append(known.pop(name))


def asks(module: Module, names: Collection[str], outside: ast.AST | None = None) -> bool:
    """Whether code of `module`, except `outside`, reads one of these attributes of a value."""
    left_out = {id(node) for node in ast.walk(outside)} if outside is not None else set()
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.ctx, ast.Load)
        and id(node) not in left_out
        and not dotted(module, node)
        for node in ast.walk(module.tree)
    )
