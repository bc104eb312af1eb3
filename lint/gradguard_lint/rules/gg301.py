"""The caller's grad mode or autocast does not reach the workers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter

from gradguard_lint.domain.effects import (
    Effect,
    Modes,
    ParallelCall,
    Program,
    Step,
    TaskRun,
    of_kinds,
)
from gradguard_lint.domain.payloads import (
    Autograd,
    Backward,
    Compute,
    Graph,
    LibraryUse,
    UnknownCall,
)
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import Function, Site
from gradguard_lint.fixes.changes import Change, Decorate, Fix
from gradguard_lint.fixes.task_functions import (
    callers_are_seen,
    function_of,
    handed_out_alone,
    leads_only_to,
    on_the_way,
    reached,
)
from gradguard_lint.fixes.written import dotted, imported, importing, source_of, spelled
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Report, chain, sites_to

CODE = "GG301"

_OFF_IF = {"set_grad_enabled": "false", "inference_mode": "true"}
"""Modes that turn gradients off if their argument has this value."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        lost = (report for task in call.tasks for report in _lost_modes(program, call, task))
        yield from islice(lost, 1)


def _lost_modes(program: Program, call: ParallelCall, task: TaskRun) -> Iterator[Report]:
    """The caller's modes that are missing in `task`."""
    modes = call.modes
    kept = call.inherited if call.start in INHERITING else Modes()
    if kept.grad and not modes.grad and modes.grad_site is not None:
        seen = _builds_graph(task, loads=call.traits.prepared)
        if seen is not None and not _sets(task, "grad mode") and not _differentiates(task):
            condition = _condition(modes.grad_site)
            yield Report(
                call.site,
                f"Gradients are off here{condition}, but not in {call.workers}: "
                f"`{task.function_of(seen)}` builds graphs there.",
                (Step(modes.grad_site, "gradients are turned off here"), *_computes(task, seen)),
                call=call,
                # a decorator would also apply where gradients are on
                fix=None if condition else _decorated(program, call, _GRAD),
            )
    if kept.autocast is None and modes.autocast is not None and not _sets(task, "autocast"):
        seen = _computes_in_full(task)
        if seen is not None:
            yield Report(
                call.site,
                f"Autocast is on here, but not in {call.workers}: "
                f"`{task.function_of(seen)}` runs in full precision there.",
                (Step(modes.autocast, "autocast is turned on here"), *_computes(task, seen)),
                call=call,
                fix=_decorated(program, call, _AUTOCAST),
            )


def _computes(task: TaskRun, seen: Effect) -> tuple[Step, ...]:
    return (*chain(seen), Step(seen.site, f"`{task.function_of(seen)}` computes with torch here"))


def _builds_graph(task: TaskRun, *, loads: bool) -> Effect | None:
    """The first effect of `task` that builds a graph, or calls a model.

    `loads`: the task loads data, where only a known graph counts.
    """
    for effect in task.effects:
        if isinstance(effect.payload, Graph):
            return effect
        near = len(effect.chain) <= 2  # deeper code may set the mode unseen
        model = isinstance(effect.payload, UnknownCall) and effect.payload.given
        if model and near and effect.modes.grad and not loads:
            return effect
    return None


def _computes_in_full(task: TaskRun) -> Effect | None:
    """The first torch computation of `task` outside an autocast of its own."""
    for effect in task.effects:
        work = effect.payload
        on_torch = isinstance(work, Compute) and work.framework == "torch"
        if (on_torch or isinstance(work, Graph)) and effect.modes.autocast is None:
            return effect
    return None


def _differentiates(task: TaskRun) -> bool:
    """Whether the task computes gradients, and so needs them whatever the caller's mode."""
    if any(of_kinds(task.effects, Autograd, Backward)):
        return True
    function = function_of(task)
    return function is not None and any(
        isinstance(node, ast.Attribute) and node.attr == "backward"  # of an unknown object
        for called in reached(function.module, function.node)
        for node in ast.walk(called)
    )


def _condition(mode: Site) -> str:
    """The condition under which gradients are off, if the program computes it."""
    node = mode.node
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(item.value for item in node.keywords if item.arg == "mode")]
    if name not in _OFF_IF or not given or isinstance(given[0], ast.Constant):
        return ""
    return f" if `{ast.unparse(given[0])}` is {_OFF_IF[name]}"


def _sets(task: TaskRun, mode: str) -> bool:
    return any(effect.payload.use == mode for effect in of_kinds(task.effects, LibraryUse))


# -- the repair ------------------------------------------------------------------------------------

_GRAD, _AUTOCAST = attrgetter("modes.grad_site"), attrgetter("modes.autocast")
"""The places that set the modes of a call."""


def _decorated(
    program: Program, call: ParallelCall, mode_of: Callable[[ParallelCall], Site]
) -> Fix | None:
    """A decorator with the mode for the tasks' functions, if only calls in that mode run them."""
    functions = dict.fromkeys(function_of(task) for task in call.tasks)
    changes: list[Change] = []
    for function in functions:
        if function is None or isinstance(function.node, (ast.Lambda, ast.AsyncFunctionDef)):
            return None
        if not handed_out_alone(program, function, lambda other: _in_same_mode(other, call)):
            return None
        source = _written(call, mode_of(call), function.module)
        if source is None:
            return None
        changes += (Decorate(function.module, function.node, source[0]), *source[1])
    calls = [it for it in program.calls if any(function_of(task) in functions for task in it.tasks)]
    between: set[Function] = set()
    for it in calls:  # all are in that mode
        inside = _inside_mode(it, mode_of(it))
        if inside is None:
            return None
        between.update(inside)
    concerned = {*filter(None, functions), *between}
    known = all(map(callers_are_seen, concerned))
    known = known and all(leads_only_to(it, calls) for it in between)
    return Fix(
        "safe" if known else "unsafe",
        "set the mode in the worker function",
        tuple(changes),
        alone=tuple(sorted({it.name for it in concerned})),
    )


def _inside_mode(call: ParallelCall, mode: Site | None) -> list[Function] | None:
    """Functions between the place that sets `mode` and the call, which others may call without it.

    None if the mode is chosen at run time.
    """
    sites = sites_to(call)
    if mode in sites:  # the call of the decorated function
        first = sites.index(mode) + 2
    elif mode is not None and _is_library_call(mode):
        first = max((i + 1 for i, site in enumerate(sites) if _is_around(mode, site)), default=0)
    else:
        return None
    return on_the_way(call, first)


def _is_library_call(mode: Site) -> bool:
    """Whether the expression at `mode` always calls the same function of a library."""
    return isinstance(mode.node, ast.Call) and bool(dotted(mode.module, mode.node.func))


def _is_around(mode: Site, site: Site) -> bool:
    """Whether `site` is in the ``with`` block of `mode`, in one function."""
    block = mode.statement
    return (
        isinstance(block, (ast.With, ast.AsyncWith))
        and any(item.context_expr is mode.node for item in block.items)
        and mode.function == site.function
        and any(node is site.node for inner in block.body for node in ast.walk(inner))
    )


def _in_same_mode(call: ParallelCall, other: ParallelCall) -> bool:
    one, two = call.modes, other.modes
    return one.grad == two.grad and one.autocast == two.autocast


def _written(
    call: ParallelCall, mode: Site, module: Module
) -> tuple[str, tuple[Change, ...]] | None:
    """The decorator that sets `mode` in a function of `module`, with its import."""
    if call.modes.autocast is None:
        return _without_gradients(module)
    for written, node in _spellings(call, mode):
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
        if name != "autocast":
            continue
        source = source_of(written, node)
        if not isinstance(node, ast.Call):
            source += "()"
        imports = _imports(written, module, node)
        if imports is not None:
            return source, imports
    return None


def _without_gradients(module: Module) -> tuple[str, tuple[Change, ...]] | None:
    """A ``no_grad`` decorator; also for ``inference_mode``, whose tensors backward refuses."""
    name = spelled(module, "torch.no_grad")
    if name is not None:
        return f"{name}()", ()
    imported = importing(module, "torch")
    return None if imported is None else ("torch.no_grad()", imported)


def _spellings(call: ParallelCall, mode: Site) -> Iterator[tuple[Module, ast.expr]]:
    """Expressions of the mode: where it is set, and decorators around the call."""
    if isinstance(mode.node, ast.expr):
        yield mode.module, mode.node
    for node in ast.walk(call.site.module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            inner is call.site.node for inner in ast.walk(node)
        ):
            for decorator in node.decorator_list:
                yield call.site.module, decorator


def _imports(source: Module, module: Module, node: ast.expr) -> tuple[Change, ...] | None:
    """The imports that give the names of `node` their meaning in `module`."""
    changes: list[Change] = []
    for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)}):
        full = imported(source).get(name)
        if full is None:
            return None  # a local name
        if source is module:
            continue
        package, _, last = full.rpartition(".")
        missing = importing(module, last, package or None) if last == name else None
        if missing is None:
            return None
        changes += missing
    return tuple(changes)
