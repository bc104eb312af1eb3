"""Draws that initialize a module whose state the task then replaces."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import Condition
from gradguard_lint.domain.effects import Effect, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Draw, ModelChange, Write
from gradguard_lint.domain.questions import length_subject
from gradguard_lint.domain.values import Instance, Site
from gradguard_lint.rules.base import sites_to


def is_replaced(task: TaskRun, number: int) -> bool:
    """Whether that draw initializes a module whose whole state the task replaces later."""
    draw = next(of_kinds(task.effects[number:], Draw))
    filled = {owner.ident for owner in _initialized_modules(draw)}
    if not filled:
        return False
    parameters = not any(map(_is_for_buffer, sites_to(draw)))
    return any(
        all(map(_has_items, effect.when - draw.when))
        and not filled.isdisjoint(_replaced_modules(effect, parameters=parameters))
        for effect in task.effects[number:]
    )


def _has_items(condition: Condition) -> bool:
    """Whether the condition only requires a collection to be non-empty."""
    key, truth = condition
    return (
        not truth
        and isinstance(key, tuple)
        and key[0] == "lt"
        and (length_subject(key[1]) is not None and key[2] == 1)
    )


def _replaced_modules(effect: Effect, *, parameters: bool) -> Iterator[int]:
    """The modules whose whole state, or all `parameters`, the effect replaces."""
    given = effect.payload
    if isinstance(given, ModelChange) and given.extent != "partial":
        yield from (model.ident for model in effect.target.of(Instance))
    elif parameters and isinstance(given, Write) and given.whole:
        yield from (tensor.ident for tensor in effect.target.tensors())


def _is_for_buffer(site: Site) -> bool:
    """Whether the value created at `site` is registered as a buffer."""
    statement = site.statement
    made = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(made, ast.Call) and getattr(made.func, "attr", "") == "register_buffer"


def _initialized_modules(draw: Effect[Draw]) -> Iterator[Instance]:
    """Modules under construction that keep what is drawn only in their state."""
    path = sites_to(draw)
    nodes = [site.node for site in path]
    inside: set[ast.AST] = set()
    for owner, maker in reversed(draw.making):
        below = path[nodes.index(maker) + 1 :] if maker in nodes else path
        if owner.cls.what != draw.payload.framework or any(
            _is_kept_elsewhere(site) for site in below if site.node not in inside
        ):
            return
        inside.add(maker)
        yield owner


_STATE = ("bias", "data", "weight")


def _is_kept_elsewhere(site: Site) -> bool:
    """Whether the value created at `site` becomes an attribute outside a module's state."""
    statement = site.statement
    targets: list[ast.expr] = []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    places = [it.value if isinstance(it, ast.Subscript) else it for it in targets]
    others = [it for it in places if isinstance(it, ast.Attribute) and it.attr not in _STATE]
    return bool(others) and not any(
        isinstance(part, ast.Call)
        and ast.unparse(part.func).rpartition(".")[2] == "Parameter"
        and any(inner is site.node for inner in ast.walk(part))
        for part in ast.walk(statement or site.node)
    )
