"""Optimizers whose class is the project's: what they inherit is what those of torch do."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Effect
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Frame,
    Instance,
    Thing,
    Value,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.transfers.torch_modules import optimizer_method

KIND = "optimizer"
"""What a class is that extends one of torch's, and what its objects are by what they inherit."""

_INHERITED = "<optimizer>"


def init_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """``Optimizer.__init__`` of an object of a project's subclass."""
    parts = (("parameters", args.get(0, "params") or UNKNOWN),)
    thing = Thing(KIND, instance.cls.name, instance.ident, instance.born, parts=parts)
    m.store[instance.ident, _INHERITED] = of(thing)
    return NOTHING


def inherited(m: Machine, instance: Instance) -> Value:
    """The optimizer that an object of a project's class is by what it inherits."""
    return m.read(instance.ident, _INHERITED) or UNKNOWN


def optimizers(m: Machine, value: Value) -> list[Thing]:
    """The optimizers that `value` may be."""
    found: list[Thing] = []
    for atom in value.atoms:
        whole = inherited(m, atom) if isinstance(atom, Instance) else of(atom)
        found += whole.things(KIND)
    return found


def method(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, name: str, args: Args
) -> Value | None:
    """A method that a project's optimizer inherits."""
    for thing in inherited(m, instance).things(KIND):
        return optimizer_method(m, frame, node, thing, name, args)
    return None


def ran(m: Machine, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args) -> None:
    """A project's optimizer ran its own ``step``: it stepped, if nothing that it called did."""
    if not isinstance(receiver, Instance) or receiver.cls.what != KIND or name != "step":
        return
    if m.dead or any(True for _ in args.values()):
        return  # it may step over something else than gradients
    for thing in inherited(m, receiver).things(KIND):
        known = any(
            isinstance(event, Effect) and event.kind == "step" and thing in event.target.atoms
            for event in m.state.past
        )
        if not known:
            optimizer_method(m, frame, node, thing, name, args)
