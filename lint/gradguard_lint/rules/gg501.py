"""A loss is computed from the outputs of a collective, which have no graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.payloads import Collective
from gradguard_lint.fixes.changes import Fix, ReplaceStatement
from gradguard_lint.fixes.written import (
    assigned,
    bindings,
    imported,
    importing,
    is_open,
    source_of,
)
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Report, code, severed_by
from gradguard_lint.words import words

CODE = "GG501"

_PARAMETERS = ("tensor_list", "tensor", "group", "async_op")
"""The parameters of `all_gather`, which fills a list with one tensor per rank."""
_FUNCTIONAL = "torch.distributed.nn.functional"
_NEW = words("empty_like zeros_like ones_like empty zeros ones new_empty new_zeros new_ones")
"""Functions whose results share no memory."""


def check(program: Program) -> Iterator[Report]:
    effects = program.effects_of(Collective)
    calls = {it.payload.ident: it for it in effects if it.payload.does == "exchange"}
    for effect in effects:
        if effect.payload.does != "cut":
            continue
        for ident in sorted(severed_by(effect.target) & calls.keys()):
            call = calls[ident]
            yield Report(
                call.site,
                f"The outputs of {code(call.what)} have no graph, and a loss is computed from "
                "them: what was gathered gets no gradient.",
                (*call.chain, Step(effect.site, "the backward pass stops at these outputs")),
                what=call.what,
                fix=_with_graph(call),
            )


def _with_graph(call: Effect) -> Fix | None:
    """A call of the differentiable collective instead."""
    site = call.site
    node, statement, module = site.node, site.statement, site.module
    if (
        call.what != "`all_gather`"
        or not isinstance(node, ast.Call)
        or not isinstance(statement, ast.Expr)
        or statement.value is not node
        or is_open(node)
    ):
        return None
    given = dict(zip(_PARAMETERS, node.args, strict=False))
    given |= {item.arg: item.value for item in node.keywords if item.arg}
    outputs, own, group, waits = (given.get(name) for name in _PARAMETERS)
    if own is None or not (waits is None or _is(waits, False)):
        return None
    if not isinstance(outputs, ast.Name) or not _is_list_of_new(module, outputs.id):
        return None
    changes = importing(module, _FUNCTIONAL)
    if changes is None or imported(module).get("torch") not in (None, "torch"):
        return None
    arguments = [source_of(module, own)]
    if group is not None and not _is(group, None):
        arguments.append(source_of(module, group))
    line = f"{outputs.id}[:] = {_FUNCTIONAL}.all_gather({', '.join(arguments)})"
    message = "gather with a collective that has a gradient"
    return Fix("unsafe", message, (ReplaceStatement(module, statement, line), *changes))


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_list_of_new(module: Module, name: str) -> bool:
    """Whether `name` is always a list of new tensors in `module`."""
    values = [
        value
        for node in ast.walk(module.tree)
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and target.id == name
    ]
    return len(values) == bindings(module.tree, name) and all(map(_makes_new, values))


def _makes_new(node: ast.expr) -> bool:
    made = node.elt if isinstance(node, ast.ListComp) else None
    function = made.func if isinstance(made, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in _NEW
