"""Draws that only fill the state of a module that is given another one before it matters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import Condition
from gradguard_lint.domain.effects import Effect, TaskRun
from gradguard_lint.domain.questions import counted
from gradguard_lint.domain.values import Instance, Site
from gradguard_lint.rules.base import sites_to


def is_replaced(task: TaskRun, number: int) -> bool:
    """Whether that draw is for the state of a module that is being made, and that the task gives
    another state as a whole, later and in any case."""
    draw = task.effects[number]
    filled = {owner.ident for owner in _filled(draw)}
    if not filled:
        return False
    parameters = not any(map(_is_for_buffer, sites_to(draw)))
    return any(
        all(map(_has_items, effect.when - draw.when))
        and not filled.isdisjoint(_given(effect, parameters=parameters))
        for effect in task.effects[number:]
    )


def _has_items(condition: Condition) -> bool:
    """Whether it says no more than that something has items: what is among them is there."""
    key, truth = condition
    return (
        not truth
        and isinstance(key, tuple)
        and key[0] == "lt"
        and (counted(key[1]) is not None and key[2] == 1)
    )


def _given(effect: Effect, *, parameters: bool) -> Iterator[int]:
    """The modules that are given another state as a whole there, or all `parameters` of them: what
    stands for each of these has the module's identity."""
    if effect.kind == "model-change" and effect.framework != "partial":
        yield from (model.ident for model in effect.target.of(Instance))
    elif parameters and effect.kind == "in-place" and effect.framework == "whole":
        yield from (tensor.ident for tensor in effect.target.tensors())


def _is_for_buffer(site: Site) -> bool:
    """Whether what comes about there is given to a module as no parameter of it."""
    statement = site.statement
    made = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(made, ast.Call) and getattr(made.func, "attr", "") == "register_buffer"


def _filled(draw: Effect) -> Iterator[Instance]:
    """The modules of its framework that are being made where that draw is, and of whose state
    alone what is drawn becomes a part."""
    path = sites_to(draw)
    nodes = [site.node for site in path]
    inside: set[ast.AST] = set()
    for owner, maker in reversed(draw.making):
        below = path[nodes.index(maker) + 1 :] if maker in nodes else path
        if owner.cls.what != draw.framework or any(
            _keeps(site) for site in below if site.node not in inside
        ):
            return
        inside.add(maker)
        yield owner


_STATE = ("bias", "data", "weight")


def _keeps(site: Site) -> bool:
    """Whether what comes about there becomes an attribute that is no part of a module's state."""
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
