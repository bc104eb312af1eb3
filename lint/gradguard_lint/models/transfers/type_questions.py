"""Type tests: ``isinstance``, ``hasattr``, ``torch.is_tensor``."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    STUB,
    UNKNOWN,
    Atom,
    Class,
    Const,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.caching import has_set_attribute
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Row
from gradguard_lint.models.torch_words import OF_TENSORS
from gradguard_lint.models.transfers import data_parallel, options
from gradguard_lint.models.transfers.frozen import module_itself


def is_of(m: Machine, value: Value, kind: Value) -> Value:
    """``isinstance(value, kind)``."""
    if value.only is None:
        return value.map(lambda atom: is_of(m, of(atom), kind))
    only, asked = value.only, kind.only
    if isinstance(asked, Items) and asked.items is not None:
        kinds = [_class_name(item.only) for item in asked.items]
        if isinstance(only, Unknown) and all(kinds):
            return _split_by_value(only, *kinds)
        answers = [is_of(m, value, item) for item in asked.items]
        truths = {answer.constant for answer in answers}
        return constant(True in truths) if truths in ({True}, {False}, {True, False}) else UNKNOWN
    if isinstance(asked, External):
        if asked.name == "builtins.type" and isinstance(only, (Class, Function)):
            return constant(isinstance(only, Class))
        own = _OWN.get(asked.name)
        if own is not None and isinstance(only, Const):
            return constant(isinstance(only.value, own))
        own_name = type_name(only)
        if own_name and asked.name in _TOLD_APART:
            return constant(own_name == asked.name)
        if isinstance(only, Instance) and only.cls.plain and asked.name in _TOLD_APART:
            return constant(False)
    if isinstance(asked, Class) and isinstance(only, Instance):
        known = asked is only.cls or asked in only.cls.above
        seen = not asked.module.is_stub or only.cls.plain or only.cls.what == STUB
        return constant(known) if known or seen else UNKNOWN  # its base may extend that class
    if isinstance(asked, Class) and isinstance(only, (Const, Items, Table, Tensor)):
        return constant(False) if asked.plain else UNKNOWN  # members of an Enum are constants here
    is_wrapper = _is_wrapper(m, value, kind)
    name = _class_name(asked)
    return _split_by_value(only, name) if is_wrapper == UNKNOWN and name else is_wrapper


def _class_name(atom: Atom | None) -> str:
    """The name of a built-in class; "" for others, for which questions cost more than they gain."""
    return atom.name if isinstance(atom, External) and atom.name in _TOLD_APART else ""


def _split_by_value(atom: Atom, *kinds: str) -> Value:
    """The question whether an unknown value is of one of these classes."""
    key = atom.key if isinstance(atom, Unknown) else None
    return UNKNOWN if key is None else unknown(("of", key, frozenset(kinds)))


def type_name(atom: Atom | None) -> str:
    """The class of `atom`, by its full name; "" if unknown."""
    if isinstance(atom, Tensor):
        return {"torch": "torch.Tensor", "numpy": "numpy.ndarray"}.get(atom.framework, "another")
    if isinstance(atom, Const):
        return f"builtins.{type(atom.value).__name__}"
    if isinstance(atom, Items) and atom.kind in ("list", "tuple", "set"):
        return f"builtins.{atom.kind}"
    if isinstance(atom, Thing) and atom.kind == "device":
        return "torch.device"
    if isinstance(atom, Unknown) and isinstance(atom.key, tuple) and atom.key[0] == "device-of":
        return "torch.device"
    return "builtins.dict" if isinstance(atom, Table) else ""


def is_tensor(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.is_tensor(it)``."""
    tensor = f"{name.partition('.')[0]}.Tensor"

    def ask(atom: Atom) -> Value:
        kind = type_name(atom)
        return constant(kind == tensor) if kind else UNKNOWN

    return (args.get(*row.argument) or UNKNOWN).map(ask)


_TOLD_APART = frozenset(
    {f"builtins.{kind.__name__}" for kind in (str, int, float, bool, list, tuple, set, dict)}
) | {"torch.Tensor", "torch.device", "numpy.ndarray"}
"""Classes for which membership is known."""


_OWN = {f"builtins.{kind.__name__}": kind for kind in (str, int, float, bool)}


def has_attribute(m: Machine, value: Value, name: Value) -> Value:
    """``hasattr(value, "detach")``."""

    def ask(atom: Atom) -> Value:
        if isinstance(atom, Tensor):
            return constant(atom.framework == "torch")
        return constant(False) if isinstance(atom, (Const, Items, Table)) else UNKNOWN

    asked = name.constant
    if isinstance(asked, str) and value.only is not None and options.lacks(m, value.only, asked):
        return constant(False)
    if isinstance(asked, str) and isinstance(value.only, Instance):
        return has_set_attribute(m, value.only, asked)
    if name.constant not in OF_TENSORS:
        return _has_module(m, value, name)
    return value.map(ask)


def _is_wrapper(m: Machine, value: Value, kind: Value) -> Value:
    """``isinstance(value, DistributedDataParallel)``, possibly among other classes."""
    registry = registry_of(m)
    rows = [
        registry.row(registry.canonical(atom.name)) if isinstance(atom, External) else None
        for atom in inner(kind, 1)
        if not isinstance(atom, Items)
    ]
    wrappers = [row is not None and row.does == "data-parallel" for row in rows]

    def ask(atom: Atom) -> Value:
        if module_itself(atom) and any(wrappers) and data_parallel.module_in(atom) is not None:
            return constant(True)
        return constant(False) if module_itself(atom) and wrappers and all(wrappers) else UNKNOWN

    return value.map(ask)


def _has_module(m: Machine, value: Value, name: Value) -> Value:
    """``hasattr(value, "module")``."""
    if name.constant != "module":
        return UNKNOWN

    def ask(atom: Atom) -> Value:
        if isinstance(atom, Instance) and module_itself(atom):
            own = (m.find_in_class(atom.cls, it) for it in ("module", "__getattr__"))
            known = (m.read(atom.ident, "module"), *own)
            return UNKNOWN if any(it is not None for it in known) else constant(False)
        return constant(True) if data_parallel.module_in(atom) is not None else UNKNOWN

    return value.map(ask)
