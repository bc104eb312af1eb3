"""A process worker returns a tensor with history: pickling drops the graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Program, TaskRun
from gradguard_lint.domain.payloads import Backward, PossibleTraining
from gradguard_lint.domain.shapes import inner, is_certain
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.domain.values import Function, Items, Site, Table, Tensor, Unknown, Value
from gradguard_lint.fixes.changes import Fix, Wrap
from gradguard_lint.fixes.task_functions import (
    asks,
    callers_are_seen,
    function_of,
    handed_out_alone,
    leads_only_to,
    on_the_way,
)
from gradguard_lint.rules.base import Report, dispatch_step
from gradguard_lint.rules.cut_backwards import cut_backwards
from gradguard_lint.words import words

CODE = "GG102"

_OF_GRAPHS = words("requires_grad grad_fn is_leaf")
"""Attributes that differ between a received tensor and a detached one."""


def with_history(value: Value) -> bool:
    """Whether a torch tensor with history is in `value`."""
    return any(
        isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad == "history"
        for atom in inner(value)
    )


def check(program: Program) -> Iterator[Report]:
    confirmed: set[int] | None = None
    for task in program.process_tasks():
        for value, site in task.held:
            if with_history(value) and not any(
                with_history(it) for it, place in task.returns if place == site
            ):
                if confirmed is None:
                    cut = [calls for _, calls in cut_backwards(program)]
                    confirmed = {call.ident for calls in cut for call in calls}
                yield Report(
                    site,
                    _happens(task, "an object that holds a tensor"),
                    (dispatch_step(task),),
                    severity=None if task.call.ident in confirmed else "info",
                    call=task.call,
                )
        for value, site in task.returns:
            if with_history(value):
                yield Report(
                    site,
                    _happens(task),
                    (dispatch_step(task),),
                    call=task.call,
                    fix=_detached(program, task, value, site),
                )
        if not task.known and task.result is not None and with_history(task.result):
            yield Report(
                task.task.site,
                _happens(task),
                (dispatch_step(task),),
                call=task.call,
            )


def _happens(task: TaskRun, what: str = "a tensor") -> str:
    if task.call.channel.forking_pickler:
        harm = "torch refuses to pickle it, and the call fails with an error"
    else:
        harm = "the parent gets a leaf, where a later `backward()` stops"
    workers = task.call.workers
    return f"`{task.name}` returns {what} with autograd history from {workers}: {harm}."


def _detached(program: Program, task: TaskRun, value: Value, site: Site) -> Fix | None:
    """The detached return value, if no backward pass reaches the result."""
    function, node = function_of(task), site.node
    if function is None or not isinstance(node, ast.Return) or node.value is None:
        return None
    if not handed_out_alone(program, function, lambda call: call.kind == PROCESS):
        return None  # called in this process, its graph may be needed
    for effect in program.effects_of(Backward, PossibleTraining):
        if isinstance(effect.payload, PossibleTraining) and effect.payload.does != "given":
            continue
        elsewhere = not consistent(task.call.chosen, effect.when)  # the results have a graph there
        if effect.worker is None and (elsewhere or _may_reach(effect.target, task)):
            return None
    calls = [it for it in program.calls if any(function_of(run) == function for run in it.tasks)]
    runs = [run for call in calls for run in call.tasks if function_of(run) == function]
    returned = [value for run in runs for value, place in run.returns if place == site]
    if not all(run.returns for run in runs):
        return None
    parts = [_parts(node.value, it) for it in returned]
    nodes = [part for part, held in _parts(node.value, value).items() if with_history(held)]
    if not all(part in known and is_certain(known[part]) for part in nodes for known in parts):
        return None
    changes = tuple(Wrap(site.module, part, after=".detach()") for part in nodes)
    # its caller may use the result in a backward pass, or the function itself
    between = {it for call in calls for it in on_the_way(call) if _takes_or_gives(it)}
    known = task.call.root == 1 and all(map(callers_are_seen, (function, *between)))
    known = known and all(leads_only_to(it, calls) for it in between)
    known = known and not asks(task.task.site.module, _OF_GRAPHS, outside=function.node)
    return Fix(
        "safe" if known else "unsafe",
        "return the tensor without its graph",
        changes,
        alone=(function.name, *sorted({it.name for it in between})),
        last=True,  # under `no_grad` there is no graph
    )


def _takes_or_gives(function: Function) -> bool:
    """Whether the results may depend on how the function is called."""
    given = function.node.args
    return any((given.posonlyargs, given.args, given.vararg, given.kwonlyargs, given.kwarg)) or any(
        isinstance(node, (ast.Lambda, ast.Yield, ast.YieldFrom))
        or (isinstance(node, ast.Return) and node.value is not None)
        for node in ast.walk(function.node)
    )


def _may_reach(target: Value, task: TaskRun) -> bool:
    """Whether a backward pass from `target` may reach the results of the task's call."""
    for atom in inner(target):
        if isinstance(atom, Unknown):
            return True
        if isinstance(atom, Tensor) and task.call.ident in atom.severed | atom.maybe:
            return True
    return False


def _parts(node: ast.expr, value: Value) -> dict[ast.expr, Value]:
    """The value of each part of `node`, with displays split."""
    only = value.only
    held: list[tuple[ast.expr, Value | None]] = []
    if isinstance(node, (ast.Tuple, ast.List)) and isinstance(only, Items):
        if only.items is not None and len(only.items) == len(node.elts):
            held = list(zip(node.elts, only.items, strict=True))
    elif isinstance(node, ast.ListComp) and isinstance(only, Items):
        held = [(node.elt, only.element)]
    elif isinstance(node, ast.Dict) and isinstance(only, Table):
        for key, item in zip(node.keys, node.values, strict=True):
            held.append((item, only.get(key.value) if isinstance(key, ast.Constant) else None))
    if not held or any(it is None for _, it in held):
        return {node: value}
    return {
        inside: known
        for part, it in held
        if it is not None
        for inside, known in _parts(part, it).items()
    }
