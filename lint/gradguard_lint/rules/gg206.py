"""A loader starts workers in a process that can't have any."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.values import Site, Value
from gradguard_lint.engine.tree import TRIES
from gradguard_lint.fixes.changes import Change, Fix, RemoveArgument, Replace, SetKeyword
from gradguard_lint.fixes.written import is_open, keyword
from gradguard_lint.rules.base import Report, chain, sites_to

CODE = "GG206"

_WORKERS = 5
"""The position of the argument `num_workers`."""

_NEEDS_WORKERS = {"timeout": 9, "multiprocessing_context": 11}
"""The positions of arguments that need workers."""

_NEEDS_WORKERS_BY_NAME = (*_NEEDS_WORKERS, "persistent_workers", "prefetch_factor")


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        for effect in of_kinds(task.effects, LibraryUse):
            if effect.payload.use != "loader workers" or _is_caught(effect):
                continue
            made, context = effect.payload.place, effect.payload.values[0]
            why = _reason(task, context)
            if why is None:
                continue
            yield Report(
                made or effect.site,
                f"`{task.name}` iterates this DataLoader in {task.call.workers}, where it "
                f"cannot start workers of its own: {why}",
                (*chain(effect), Step(effect.site, "the loader is iterated here")),
                call=task.call,
                fix=_in_the_task(made),
            )


def _reason(task: TaskRun, context: Value) -> str | None:
    """Why a loader with that `context` cannot start workers in the task; None if it may."""
    if task.call.traits.daemons:
        return "they are daemons, and Python does not let daemons start processes."
    if task.call.start != "loky":
        return None
    if context.is_none:
        return "loky's default start method does not work for a DataLoader."
    if context.constant in ("spawn", "forkserver"):
        return "workers spawned there exit as they start."
    return None


def _is_caught(effect: Effect) -> bool:
    """Whether the task may handle the loader's error and continue."""
    return any(map(_in_a_try, sites_to(effect)))


def _in_a_try(site: Site) -> bool:
    """Whether a ``try`` around `site` catches the error without raising again."""
    return any(
        any(_continues(handler) for handler in node.handlers)
        and node.body[0].lineno <= site.line <= (node.body[-1].end_lineno or site.line)
        for node in ast.walk(site.module.tree)
        if isinstance(node, TRIES)
    )


def _continues(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    names = {
        name.id
        for name in (caught.elts if isinstance(caught, ast.Tuple) else [caught])
        if isinstance(name, ast.Name)
    }
    catches = caught is None or not names.isdisjoint(_RAISED)
    return catches and not isinstance(handler.body[-1], ast.Raise)


_RAISED = ("AttributeError", "AssertionError", "RuntimeError", "Exception", "BaseException")
"""Exceptions that loaders raise if they cannot start workers, and their bases."""


def _in_the_task(site: Site | None) -> Fix | None:
    """The loader without workers: the task loads the data itself."""
    node = site.node if site is not None else None
    if site is None or not isinstance(node, ast.Call) or is_open(node):
        return None
    module = site.module
    changes: list[Change] = [SetKeyword(module, node, "num_workers", "0")]
    if keyword(node, "num_workers") is None:
        if len(node.args) <= _WORKERS:
            return None
        changes = [Replace(module, node.args[_WORKERS], "0")]
    changes += [
        RemoveArgument(module, node, name)
        for name in _NEEDS_WORKERS_BY_NAME
        if keyword(node, name) is not None
    ]
    changes += [
        Replace(module, node.args[position], "0" if name == "timeout" else "None")
        for name, position in _NEEDS_WORKERS.items()
        if position < len(node.args)
    ]
    return Fix("unsafe", "load the data in the task itself", tuple(changes))
