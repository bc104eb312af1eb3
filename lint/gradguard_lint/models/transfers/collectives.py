"""Collectives of torch.distributed: graphs that they sever, and own parts put back."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from gradguard_lint.domain.payloads import Collective
from gradguard_lint.domain.shapes import inner, map_contents
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Frame,
    Items,
    Table,
    Tensor,
    Unknown,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.arguments import argument_node
from gradguard_lint.engine.calls import rebind
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import last_name
from gradguard_lint.engine.variables import HEAP
from gradguard_lint.models.rows import Row
from gradguard_lint.words import words
from pytest_gradguard.records import replace

OWN = "<own slot>"
"""Store key of a collective: its outputs contain the own part with its graph again."""

PUT_TOGETHER = words(
    "cat concat concatenate stack hstack vstack dstack where index_copy index_put scatter "
    "masked_scatter slice_scatter select_scatter"
)
"""Operations that combine several tensors, or write one into another."""


def collective(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A collective that sends its argument to other processes, without its graph."""
    given = args.get(*row.argument)
    if given is None:
        return UNKNOWN
    in_place = row.flag == "in-place"
    received = cut_off(m, frame, node, name, given, leaves=not in_place)
    target = argument_node(node, *row.output) if row.output[1] else None
    if target is None:
        return received
    if in_place:
        if received != given:
            rebind(m, frame, target, received)
        return UNKNOWN
    if received.is_unknown and row.argument[1] != "obj":
        received = of(Tensor("torch", "none", False, m.worker_ident))
    outputs = args.get(*row.output) or UNKNOWN
    if isinstance(target, ast.Call) and last_name(target.func) in ("list", "tuple"):
        for tensors in target.args[:1]:  # another list with the same tensors
            rebind(m, frame, tensors, of(Items("list", None, received)))
    for atom in outputs.atoms:
        if isinstance(atom, Items):
            filled = replace(atom, items=None, element=received, ends=None)
            if atom.ident:
                m.store[atom.ident, HEAP] = of(filled)
            else:
                rebind(m, frame, target, of(filled))
        elif isinstance(atom, (Tensor, Unknown)):
            listed = row.output[1].endswith("_list")
            rebind(m, frame, target, of(Items("list", None, received)) if listed else received)
    return UNKNOWN


def cut_off(
    m: Machine, frame: Frame, node: ast.AST, name: str, given: Value, *, leaves: bool = True
) -> Value:
    """The outputs of a collective for `given`.

    `leaves`: whether the outputs are new tensors, so that leaves are severed, too.
    """
    lost = ("leaf", "history", "parameter") if leaves else ("history",)
    cut: frozenset[int] = frozenset()
    if m.modes.grad and any(map(_has_graph, inner(given))):
        m.facts.evidence.is_open = True
    if m.modes.grad and any(
        isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad in lost
        for atom in inner(given)
    ):
        call = m.ident_at(node, "collective")
        cut = frozenset({call})
        m.store[call, OWN] = constant(False)
        m.facts.has_own_slots = True
        m.effect(
            frame, node, f"`{name.rpartition('.')[2]}`", Collective("exchange", given, ident=call)
        )

    def change(tensor: Tensor) -> Tensor:
        kept = tensor.severed if m.modes.grad else frozenset()
        severed = kept | cut if tensor.grad in lost else kept
        if not leaves:
            return replace(tensor, severed=severed)
        return replace(tensor, grad="none", ident=0, sources=frozenset(), severed=severed)

    return changed_tensors(given, change)


def changed_tensors(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """`value` with `change` applied to each tensor."""

    def go(atom: Atom) -> Value:
        if isinstance(atom, Tensor):
            return of(change(atom))
        if isinstance(atom, (Items, Table)):
            new = map_contents(atom, lambda held: changed_tensors(held, change))
            return of(replace(new, ident=0))
        return of(atom)

    return value.map(go)


def _has_graph(atom: Atom) -> bool:
    """Whether `atom` is a tensor that has, or may have, a graph."""
    if isinstance(atom, Tensor):
        return atom.framework == "torch" and (atom.tracked or atom.grad == "unknown")
    return isinstance(atom, Unknown)


def put_back(m: Machine, holder: Value, value: Value) -> None:
    """Record a write to `holder`: possibly the own part of gathered tensors."""
    if not m.facts.has_own_slots:
        return
    cut = {ident for atom in inner(holder) if isinstance(atom, Tensor) for ident in atom.severed}
    if not cut or not any(_has_graph(atom) for atom in inner(value)):
        return
    for ident in cut:
        if (ident, OWN) in m.store:
            m.store[ident, OWN] = constant(True)


def with_own_slot(
    m: Machine, node: ast.AST, parts: Iterable[Value], result: Value, name: str = ""
) -> Value:
    """The `result` of an operation on `parts`, which may contain the own part again."""
    cut = {ident for atom in result.tensors() for ident in atom.severed if (ident, OWN) in m.store}
    if not cut:
        return result
    if name in PUT_TOGETHER:
        atoms = [atom for part in parts for atom in inner(part, 2)]
        tensors = [atom for atom in atoms if isinstance(atom, Tensor)]
        for ident in list(cut):
            slots = [tensor for tensor in tensors if ident in tensor.severed]
            others = [
                atom
                for atom in atoms
                if _has_graph(atom) and not (isinstance(atom, Tensor) and ident in atom.severed)
            ]
            if not others or any(tensor.tracked for tensor in slots):
                cut.discard(ident)
    elif not _straight_through(node):
        return result
    if not cut:
        return result
    return changed_tensors(result, lambda atom: replace(atom, severed=atom.severed - cut))


def _straight_through(node: ast.AST) -> bool:
    """Whether `node` adds ``y - y.detach()``: the straight-through estimator."""
    if not isinstance(node, ast.BinOp):
        return False
    taken = [
        ast.dump(part.right.func.value)
        for part in ast.walk(node)
        if isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Sub)
        and isinstance(part.right, ast.Call)
        and isinstance(part.right.func, ast.Attribute)
        and part.right.func.attr == "detach"
    ]
    if not taken:
        return False
    added = [
        ast.dump(item)
        for part in ast.walk(node)
        if isinstance(part, ast.BinOp)
        for item in (part.left, part.right)
    ]
    return any(text in added for text in taken)
