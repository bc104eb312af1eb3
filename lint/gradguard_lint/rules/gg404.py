"""A Python loop computes the gradient of one example at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Effect, Program, Step, of_kinds
from gradguard_lint.domain.payloads import Backward, GradRead, LibraryUse, Payload, TapeGradient
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import UNKNOWN, Site, Tensor, Value
from gradguard_lint.rules.base import Report, sites_to

CODE = "GG404"

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


def check(program: Program) -> Iterator[Report]:
    every = (*program.effects, *program.loops)
    taken = [*of_kinds(every, Backward, TapeGradient)]
    elements = {
        it.site.node
        for it in of_kinds(every, Backward)
        if it.payload.of_element and _by_example(it)
    }
    for effect in of_kinds(every, LibraryUse):
        loop = effect.payload.place
        if effect.payload.use != "collects gradients" or loop is None:
            continue
        inside = [other for other in taken if _inside(loop, other)]
        if not inside:
            continue  # gradients computed before
        if _in_batches(loop):
            continue
        kept = [other for other in inside if _keeps_graph(other)]
        if any(other.site.node not in elements for other in kept):
            continue
        if kept and not _of_parameters(loop, every, kept):
            continue  # rows of a Jacobian
        yield Report(
            loop,
            "This loop collects gradients one example at a time: the result is right, but one "
            "vectorised call is far faster.",
            (Step(effect.site, "the gradients of one example are collected here"),),
            case=_framework(effect),
        )


def _inside(loop: Site, effect: Effect) -> bool:
    """Whether `effect` happens in the loop, or in a function called there."""
    return any(site.path == loop.path and site.stands_in(loop.node) for site in sites_to(effect))


def _by_example(effect: Effect) -> bool:
    """Whether a tensor's element is called a loss, that is, of one example."""
    node = effect.site.node
    if not isinstance(node, ast.Call):
        return False
    part = node.func.value if isinstance(node.func, ast.Attribute) else None
    parts = [*node.args[:1], *([part] if part is not None else [])]
    return any("loss" in ast.unparse(it).lower() for it in parts)


def _of_parameters(loop: Site, every: Sequence[Effect], kept: list[Effect]) -> bool:
    """Whether all gradients are those of a model's parameters."""
    asked = [atom for effect in kept for atom in inner(_asked(effect.payload))]
    read = [
        atom
        for effect in of_kinds(every, GradRead)
        if _inside(loop, effect)
        for atom in effect.target.atoms
    ]
    tensors = [atom for atom in (*asked, *read) if isinstance(atom, Tensor)]
    return bool(tensors) and all(tensor.grad == "parameter" for tensor in tensors)


def _asked(taken: Payload) -> Value:
    """The values with respect to which gradients are computed."""
    if isinstance(taken, Backward):
        return taken.inputs
    return taken.sources if isinstance(taken, TapeGradient) else UNKNOWN


def _keeps_graph(effect: Effect) -> bool:
    """Whether the graph is kept for further gradients."""
    node = effect.site.node
    return isinstance(node, ast.Call) and any(
        word.arg in ("retain_graph", "create_graph")
        and not (isinstance(word.value, ast.Constant) and word.value.value is False)
        for word in node.keywords
    )


def _in_batches(loop: Site) -> bool:
    """Whether the loop iterates over batches, by a method or an item's name."""
    node = loop.node
    parts = node.generators if isinstance(node, _COMPREHENSIONS) else [node]
    for part in parts:
        if not isinstance(part, (ast.For, ast.AsyncFor, ast.comprehension)):
            continue
        over = [part.iter]
        if isinstance(part.iter, ast.Name):
            over += _assigned(loop.module.tree, part.iter.id)
        names = [it.id for it in ast.walk(part.target) if isinstance(it, ast.Name)]
        if any("batch" in name for name in names) or any(map(_of_batches, over)):
            return True
    return False


def _assigned(tree: ast.Module, name: str) -> list[ast.expr]:
    """The values assigned to `name` anywhere in a module."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(it, ast.Name) and it.id == name for it in node.targets)
    ]


def _of_batches(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in ("batch", "padded_batch", "ragged_batch")
        for part in ast.walk(node)
    )


def _framework(effect: Effect[LibraryUse]) -> str:
    """The framework of the collected gradients."""
    parts = (part for part in inner(effect.payload.values[0], 2) if isinstance(part, Tensor))
    return next((part.framework for part in parts), "")
