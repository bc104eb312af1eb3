"""Replacements for values whose kind is proved by their use."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import NONE
from gradguard_lint.domain.evidence import CLASS
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Frame,
    Method,
    Tensor,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.transfers import module_parts, torch_modules
from gradguard_lint.models.transfers.tensors import combine, each_tensor, tensors_in
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.evidence import Kind


def class_by_use(m: Machine, node: ast.ClassDef) -> str:
    """The kind of the class at `node`, which extends an unknown class."""
    return "torch" if m.facts.evidence.is_proved((CLASS, id(node)), "module") else ""


def proved(m: Machine, subject: Key, kind: Kind, born: int) -> Atom:
    """The atom for `subject`, proved to be of that `kind`."""
    if kind == "module":
        return module_parts.proved(m, subject, born)
    ident = module_parts.ident_of(m, subject)
    if kind == "statistics":
        parts = (("statistics", constant(True)),)
        return replace(module_parts.proved(m, subject, born), parts=parts)
    if kind == "optimizer":
        parts = (("parameters", UNKNOWN),)
        return Thing(kind, "Optimizer", ident, born, parts=parts)
    if kind == "keras":
        return Thing("keras-model", "Model", ident, born)
    if kind == "variable":
        return Tensor("tensorflow", kind, False, born, ident)
    if kind == "leaf":
        return Tensor("torch", kind, False, born, ident)
    own = frozenset({ident})
    return Tensor("torch", "history", False, born, ident, sources=own)


def computed(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    subject: Key,
    function: Value,
    args: Args,
) -> Value | None:
    """The result of `function`, with the key `subject`, proved to be an optimizer or to have a
    graph: it has the parameters, or graph, of the arguments."""
    evidence = m.facts.evidence
    if evidence.is_proved(subject, "optimizer"):
        parts = (("parameters", args.get(0) or UNKNOWN),)
        return of(Thing("optimizer", "Optimizer", m.ident_of(subject), m.worker_ident, parts=parts))
    if subject not in evidence.with_graph:
        return None
    only = function.only
    receiver = only.receiver if isinstance(only, Method) else None
    if isinstance(receiver, Thing) and receiver.kind == "model":
        return torch_modules.model_call(m, frame, node, receiver, args)
    if not evidence.is_proved(subject, "graph"):
        return None
    ident = m.ident_of(subject)
    own = Tensor("torch", "history", False, m.worker_ident, ident, sources=frozenset({ident}))
    value = combine(m, [*tensors_in(args.values()), (own, NONE)], framework="torch")
    return each_tensor(value, lambda it: replace(it, ident=ident))
