"""The caller's grad mode or autocast does not reach the workers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from operator import attrgetter

from gradguard_lint.domain.effects import Effect, Modes, ParallelCall, Program, Step, TaskRun
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
from gradguard_lint.rules.base import Examples, Report, chain

CODE = "GG301"

_GRAD, _AUTOCAST = attrgetter("modes.grad_site"), attrgetter("modes.autocast")
"""Where the modes of a call are put in force."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        modes = call.modes
        kept = call.inherited if call.start in INHERITING else Modes()
        for task in call.tasks:
            if kept.grad and not modes.grad and modes.grad_site is not None:
                seen = _graph(task, loads=call.prepared)
                if seen is not None and not _sets(task, "grad") and not _differentiates(task):
                    condition = _condition(modes.grad_site)
                    yield Report(
                        call.site,
                        f"Gradients are off here{condition}, but not in {call.workers}: "
                        f"`{task.doer(seen)}` builds graphs there.",
                        (
                            Step(modes.grad_site, "gradients are turned off here"),
                            *chain(seen),
                            Step(seen.site, f"`{task.doer(seen)}` computes with torch here"),
                        ),
                        call=call,
                        # a decorator would hold where gradients are on, too
                        fix=None if condition else _decorated(program, call, _GRAD),
                    )
                    break
            if kept.autocast is None and modes.autocast is not None and not _sets(task, "autocast"):
                seen = _graph(task, any_compute=True)
                if seen is not None:
                    yield Report(
                        call.site,
                        f"Autocast is on here, but not in {call.workers}: "
                        f"`{task.doer(seen)}` runs in full precision there.",
                        (
                            Step(modes.autocast, "autocast is turned on here"),
                            *chain(seen),
                            Step(seen.site, f"`{task.doer(seen)}` computes with torch here"),
                        ),
                        call=call,
                        fix=_decorated(program, call, _AUTOCAST),
                    )
                    break


def _decorated(
    program: Program, call: ParallelCall, mode_of: Callable[[ParallelCall], Site]
) -> Fix | None:
    """The mode as a decorator of the tasks' functions, where nothing else calls these, nor what
    hands them out."""
    functions = [function_of(task) for task in call.tasks]
    changes: list[Change] = []
    seen = True
    for function in dict.fromkeys(functions):
        if function is None or isinstance(function.node, (ast.Lambda, ast.AsyncFunctionDef)):
            return None
        if not handed_out_alone(program, function, lambda other: _same(other, call)):
            return None
        source = _written(call, mode_of(call), function.module)
        if source is None:
            return None
        changes += (Decorate(function.module, function.node, source[0]), *source[1])
        seen = seen and callers_are_seen(function)
    calls = [it for it in program.calls if any(function_of(task) in functions for task in it.tasks)]
    ways = [_way(it, mode_of(it)) for it in calls]  # all are in that mode
    if None in ways:
        return None
    between = {function for way in ways for function in way or ()}
    names = tuple(sorted({it.name for it in (*functions, *between) if it is not None}))
    seen = seen and all(callers_are_seen(it) and leads_only_to(it, calls) for it in between)
    return Fix(
        "safe" if seen else "unsafe",
        "set the mode in the worker function",
        tuple(changes),
        alone=names,
    )


def _way(call: ParallelCall, mode: Site | None) -> list[Function] | None:
    """The functions by which the program comes to the call from the block, or the function under
    a decorator, that is always in `mode`: others may call them without it. None where the program
    decides as it runs which mode that is."""
    sites = [*(step.site for step in call.chain), call.site]
    if mode in sites:  # the decorated function is called there
        first = sites.index(mode) + 2
    elif mode is not None and _is_plain(mode):
        first = max((i + 1 for i, site in enumerate(sites) if _is_around(mode, site)), default=0)
    else:
        return None
    return on_the_way(call, first)


def _is_plain(mode: Site) -> bool:
    """Whether the expression at `mode` is a call of a library's, whatever the program is told."""
    return isinstance(mode.node, ast.Call) and bool(dotted(mode.module, mode.node.func))


def _is_around(mode: Site, site: Site) -> bool:
    """Whether the block that `mode` begins is around `site`, in one function."""
    block = mode.statement
    return (
        isinstance(block, (ast.With, ast.AsyncWith))
        and any(item.context_expr is mode.node for item in block.items)
        and mode.function == site.function
        and any(node is site.node for inner in block.body for node in ast.walk(inner))
    )


def _same(call: ParallelCall, other: ParallelCall) -> bool:
    """Whether both are made in the same mode."""
    one, two = call.modes, other.modes
    if one.grad != two.grad or (one.autocast is None) != (two.autocast is None):
        return False
    return one.autocast is None or one.autocast == two.autocast


def _written(
    call: ParallelCall, mode: Site, module: Module
) -> tuple[str, tuple[Change, ...]] | None:
    """The decorator that sets `mode` in a function of `module`, and the import that it needs."""
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
    """``no_grad`` whatever the caller has: backward saves no tensor of ``inference_mode``, which
    the results in worker threads and processes are not now."""
    name = spelled(module, "torch.no_grad")
    if name is not None:
        return f"{name}()", ()
    imported = importing(module, "torch")
    return None if imported is None else ("torch.no_grad()", imported)


def _spellings(call: ParallelCall, mode: Site) -> Iterator[tuple[Module, ast.expr]]:
    """How the program writes the mode: where it is set, or as a decorator around the call."""
    if isinstance(mode.node, ast.expr):
        yield mode.module, mode.node
    for node in ast.walk(call.site.module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            inner is call.site.node for inner in ast.walk(node)
        ):
            for decorator in node.decorator_list:
                yield call.site.module, decorator


def _imports(source: Module, module: Module, node: ast.expr) -> tuple[Change, ...] | None:
    """What `module` has to import so that `node` means there what it means in `source`."""
    changes: list[Change] = []
    for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)}):
        full = imported(source).get(name)
        if full is None:
            return None  # what it is may depend on where it is evaluated
        if source is module:
            continue
        package, _, last = full.rpartition(".")
        missing = importing(module, last, package or None) if last == name else None
        if missing is None:
            return None
        changes += missing
    return tuple(changes)


def _graph(task: TaskRun, *, any_compute: bool = False, loads: bool = False) -> Effect | None:
    """What makes a graph, or (`any_compute`) computes, in `task`.

    `loads`: it loads data, of which nothing requires grad unless that is known.
    """
    for effect in task.effects:
        if loads and effect.kind != "graph":
            continue
        near = len(effect.chain) <= 2  # what is far below may set the mode unseen
        if any_compute and effect.modes.autocast is not None:
            continue
        if effect.framework == "torch" and (
            effect.kind == "graph" or (effect.kind == "compute" and any_compute)
        ):
            return effect
        model = effect.kind == "unknown-call" and effect.unknown
        if model and near and effect.modes.grad and not any_compute:
            return effect
    return None


def _differentiates(task: TaskRun) -> bool:
    """Whether the task takes gradients itself: it wants them on, whatever the caller wants."""
    if any(effect.kind in ("backward", "autograd") for effect in task.effects):
        return True
    function = function_of(task)
    return function is not None and any(
        isinstance(node, ast.Attribute) and node.attr == "backward"  # of something unknown
        for called in reached(function.module, function.node)
        for node in ast.walk(called)
    )


def _condition(mode: Site) -> str:
    """When gradients are off, where the program decides that as it runs."""
    node = mode.node
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(item.value for item in node.keywords if item.arg == "mode")]
    if name not in _OFF_IF or not given or isinstance(given[0], ast.Constant):
        return ""
    return f" if `{ast.unparse(given[0])}` is {_OFF_IF[name]}"


_OFF_IF = {"set_grad_enabled": "false", "inference_mode": "true"}


def _sets(task: TaskRun, mode: str) -> bool:
    return any(effect.kind == "mode-set" and effect.framework == mode for effect in task.effects)


BAD: Examples = {
    "with block, threads": """\
import torch
from joblib import Parallel, delayed

net = torch.nn.Linear(3, 1)


def predict(batch):
    return net(batch).requires_grad


with torch.no_grad():
    rows = Parallel(n_jobs=2, prefer="threads")(  # GG301
        delayed(predict)(torch.ones(2, 3)) for _ in range(3)
    )
print(rows)  # repaired: [False, False, False]
""",
    "decorated, loky": """\
import torch
from joblib import Parallel, delayed


def predict(net, batch):
    return net(batch).requires_grad


@torch.inference_mode()
def evaluate(batches):
    net = torch.nn.Linear(3, 2)
    return Parallel(n_jobs=2)(delayed(predict)(net, batch) for batch in batches)  # GG301


print(evaluate([torch.ones(2, 3)]))  # repaired: [False]
""",
    "autocast, threads": """\
import torch
from joblib import Parallel, delayed


def predict(net, batch):
    return str(net(batch).dtype)


net = torch.nn.Linear(2, 2)
batches = [torch.ones(2)] * 2
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(Parallel(2, "threading")(delayed(predict)(net, x) for x in batches))  # GG301
# repaired: ['torch.bfloat16', 'torch.bfloat16']
""",
}

FIXED: Examples = {
    "with block, threads": """\
import torch
from joblib import Parallel, delayed

net = torch.nn.Linear(3, 1)


@torch.no_grad()
def predict(batch):
    return net(batch).requires_grad


with torch.no_grad():
    rows = Parallel(n_jobs=2, prefer="threads")(  # GG301
        delayed(predict)(torch.ones(2, 3)) for _ in range(3)
    )
print(rows)  # repaired: [False, False, False]
""",
    "decorated, loky": """\
import torch
from joblib import Parallel, delayed


@torch.no_grad()
def predict(net, batch):
    return net(batch).requires_grad


@torch.inference_mode()
def evaluate(batches):
    net = torch.nn.Linear(3, 2)
    return Parallel(n_jobs=2)(delayed(predict)(net, batch) for batch in batches)  # GG301


print(evaluate([torch.ones(2, 3)]))  # repaired: [False]
""",
    "autocast, threads": """\
import torch
from joblib import Parallel, delayed


@torch.autocast("cpu", dtype=torch.bfloat16)
def predict(net, batch):
    return str(net(batch).dtype)


net = torch.nn.Linear(2, 2)
batches = [torch.ones(2)] * 2
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(Parallel(2, "threading")(delayed(predict)(net, x) for x in batches))  # GG301
# repaired: ['torch.bfloat16', 'torch.bfloat16']
""",
}

GOOD: Examples = {
    "the worker sets it": """\
import torch
from joblib import Parallel, delayed

net = torch.nn.Linear(3, 1)


@torch.no_grad()
def predict(batch):
    return net(batch).tolist()


with torch.no_grad():
    rows = Parallel(n_jobs=2, prefer="threads")(
        delayed(predict)(torch.ones(2, 3)) for _ in range(3)
    )
""",
    "forked workers inherit it": """\
import torch
from joblib import Parallel, delayed

net = torch.nn.Linear(3, 1)


def predict(batch):
    torch.set_num_threads(1)
    return net(batch).tolist()


with torch.no_grad():
    rows = Parallel(n_jobs=2, backend="multiprocessing")(
        delayed(predict)(torch.ones(2, 3)) for _ in range(3)
    )
""",
}
