"""Optimizers of project classes, which inherit from torch's."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import of_kinds
from gradguard_lint.domain.payloads import OptimizerStep
from gradguard_lint.domain.values import NOTHING, UNKNOWN, Atom, Frame, Instance, Thing, Value, of
from gradguard_lint.engine.attributes import as_field_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import parents_in
from gradguard_lint.models.transfers.torch_modules import optimizer_method

KIND = "optimizer"
"""The kind of classes that extend torch's, and of the optimizer that their objects inherit."""

_INHERITED = "<optimizer>"


def init_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """``Optimizer.__init__`` of an object of a project class."""
    parts = (("parameters", args.get(0, "params") or UNKNOWN),)
    thing = Thing(KIND, instance.cls.name, instance.ident, instance.born, parts=parts)
    m.store[instance.ident, _INHERITED] = of(thing)
    return NOTHING


def inherited(m: Machine, instance: Instance) -> Value:
    """The inherited optimizer of an object of a project class."""
    found = m.read(instance.ident, _INHERITED) or UNKNOWN
    if any(thing.born == instance.born for thing in found.things(KIND)):
        return found
    return as_field_of(m, instance, found)


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
    """Record a step after a project's own ``step``, if nothing that it called stepped."""
    if not isinstance(receiver, Instance) or receiver.cls.what != KIND or name != "step":
        return
    if m.dead or any(True for _ in args.values()):
        return  # it may step with something else than gradients
    for thing in inherited(m, receiver).things(KIND):
        known = any(thing in event.target.atoms for event in of_kinds(m.state.past, OptimizerStep))
        if not known:
            optimizer_method(m, frame, node, thing, name, args)


_SHOWING = ("len", "print", "repr", "str")
"""Functions that don't change their argument."""


def other_parameters(node: ast.AST, statement: ast.AST | None) -> bool:
    """Whether the optimizer may get other parameters through its groups, which `node` reads; not if
    only options, such as the learning rate, are read or set."""
    if statement is None:
        return True
    above = parents_in(statement)
    around = above.get(node)
    if isinstance(around, ast.Subscript) and around.value is node:  # one group
        return _beyond_options(around, above)
    if isinstance(around, ast.Call) and _is_called(around, "enumerate"):
        node, around = around, above.get(around)
    loop = around
    if not isinstance(loop, (ast.For, ast.comprehension)) or loop.iter is not node:
        return not _shows(around)
    target = loop.target
    if isinstance(node, ast.Call) and isinstance(target, ast.Tuple) and len(target.elts) > 1:
        target = target.elts[1]
    name = target.id if isinstance(target, ast.Name) else None
    return name is None or any(
        _beyond_options(part, above)
        for part in ast.walk(statement)
        if part is not target and isinstance(part, ast.Name) and part.id == name
    )


def _beyond_options(group: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Whether a group is used for more than reading or setting an option."""
    around = above.get(group)
    key: ast.AST | None = None
    if isinstance(around, ast.Subscript) and around.value is group:
        key = around.slice
    elif isinstance(around, ast.Attribute) and around.attr == "get":
        call = above.get(around)
        key = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(key, ast.Constant):
        return key.value == "params"
    return not _shows(around)


def _shows(around: ast.AST | None) -> bool:
    return isinstance(around, ast.FormattedValue) or (
        isinstance(around, ast.Call) and any(_is_called(around, name) for name in _SHOWING)
    )


def _is_called(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name
