"""Truth values of atoms and comparisons, and questions for unknown ones."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from functools import lru_cache

from gradguard_lint.domain.conditions import GPU_PRESENT
from gradguard_lint.domain.questions import Key, is_question
from gradguard_lint.domain.shapes import may_have_key
from gradguard_lint.domain.values import (
    Atom,
    Bound,
    Choice,
    Class,
    Const,
    Delayed,
    External,
    Function,
    Generator,
    Instance,
    Items,
    Partial,
    ProjectModule,
    Table,
    TaskCall,
    Thing,
    Unknown,
    Value,
    joined,
)
from gradguard_lint.engine.texts import may_be
from gradguard_lint.engine.tree import last_name
from gradguard_lint.words import words

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any, TypeGuard

GPU_FLAGS = words(
    "gpu gpus n_gpu n_gpus ngpus num_gpus gpu_count use_gpu use_gpus use_cuda with_gpu "
    "with_cuda cuda is_cuda has_gpu has_cuda gpu_available cuda_available on_gpu enable_gpu"
)
"""Options that enable a GPU."""


@lru_cache(maxsize=4096)
def denying_gpu(node: ast.expr) -> bool | None:
    """The truth by which a test implies that no GPU is used: ``gpus == 0``, ``use_cuda`` false,
    ``device == "cpu"``; None if it implies nothing."""
    if _flag(node):
        return False
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    op, right = type(node.ops[0]), node.comparators[0]
    if not isinstance(right, ast.Constant):
        return None
    if right.value in ("cpu", "CPU") and "device" in ast.unparse(node.left).lower():
        return {ast.Eq: True, ast.NotEq: False}.get(op)
    if not _flag(node.left):
        return None
    if not right.value and op in _EQUALITY:
        return op not in _NEGATIVE
    if (op is ast.Gt and right.value == 0) or (op is ast.GtE and right.value == 1):
        return False
    return None


def _flag(node: ast.expr) -> bool:
    return last_name(node) in GPU_FLAGS


def names_gpu(text: str) -> bool:
    """Whether `text` mentions a GPU."""
    low = text.lower()
    return "cuda" in low or "gpu" in low


def truth_of(atom: Atom) -> bool | None:
    """The truth of `atom`, if it is known."""
    if isinstance(atom, Const):
        return bool(atom.value)
    if isinstance(atom, Items):
        return bool(atom.items) if atom.items is not None else (True if atom.ends else None)
    if isinstance(atom, Table):
        return True if atom.entries else None
    if isinstance(atom, Thing):
        return None if atom.kind in ("number", "state", "namespace") else True
    if isinstance(atom, Instance):  # of a library class
        return True if atom.cls.module.is_stub else None
    return True if type(atom) in _TRUE else None


_TRUE = frozenset({Function, Class, Bound, Partial, Delayed, TaskCall, Generator})
"""Atoms that are always true."""


def truthy(value: Value | None) -> bool:
    return value is not None and bool(value.constant)


def _device(atom: Atom) -> TypeGuard[Thing]:
    return isinstance(atom, Thing) and atom.kind == "device"


def as_unknown(atom: Atom) -> Atom:
    """`atom`; a library's attribute as an unknown with a fixed key."""
    return Unknown(("external", atom.name)) if isinstance(atom, External) else atom


def object_key(atom: Instance) -> Key:
    """The key of an object."""
    return ("object", atom.ident)


def names_cuda(key: Key) -> Key:
    """The question whether the value of `key`, or its text, names a GPU."""
    return ("contains", named(key), "cuda")


def asks_on_gpu(key: Key) -> Key:
    """The question whether a tensor with this key is on a GPU: ``is_cuda``."""
    return names_cuda(("attr", key, "device"))


def named(key: Key) -> Key:
    """`key` without conversions to a string."""
    while isinstance(key, tuple) and key[0] == "str":
        key = key[1]
    return key


_DEVICES = frozenset({"cpu", "mps", "xpu", "meta"})
"""Device types other than CUDA."""


_KNOWN_APART = (Function, Class)
"""Objects of which each definition creates a distinct one."""

_IDENTITY = frozenset({ast.Is, ast.IsNot})
_EQUALITY = frozenset({ast.Eq, ast.NotEq, ast.Is, ast.IsNot})
_CONTAINING = frozenset({ast.In, ast.NotIn})
_NEGATIVE = frozenset({ast.NotEq, ast.IsNot, ast.NotIn})

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def compare(op: ast.cmpop, left: Atom, right: Atom) -> Atom:
    """The result of ``left op right``."""
    kind = type(op)
    if kind not in _IDENTITY:
        left, right = as_unknown(left), as_unknown(right)
    elif isinstance(left, Unknown):
        right = as_unknown(right)
    negative = kind in _NEGATIVE
    if kind in _EQUALITY:
        if isinstance(left, Const) and isinstance(right, Const):
            return Const((left.value == right.value) is not negative, "bool")
        if isinstance(left, Const) or (_device(left) and not _device(right)):
            left, right = right, left
        if _device(right) and isinstance(left, Const):
            return Const(negative, "bool")  # a device isn't a string, even if it has that name
        if _device(right) and not right.parts:
            right = Const(right.name, "device") if isinstance(left, Unknown) else right
        if isinstance(left, Unknown) and left.key == ("gpu-count",) and right == Const(0, "int"):
            return Unknown(GPU_PRESENT if negative else ("not", GPU_PRESENT))
        if isinstance(left, Instance) and not left.cls.plain and right != Const(None, "NoneType"):
            left = Unknown(object_key(left))  # possibly an enum member
        if isinstance(left, Unknown) and is_question(left.key) and _is_truth(right, op):
            is_same = bool(right.value) is not negative
            return left if is_same else Unknown(("not", left.key))
        asked = left.key or left.sent if isinstance(left, Unknown) else None
        if asked is not None and isinstance(right, Const):
            if right.kind != "device" and not may_be(asked, right.value):
                return Const(negative, "bool")
            key: Key = ("eq", asked, right.value)
            if isinstance(asked, tuple) and asked[-1] == "type":
                if right.value == "cuda":
                    key = names_cuda(asked[1])
                elif right.value in _DEVICES:
                    key = ("type", named(asked[1]), right.value)
            return Unknown(("not", key) if negative else key)
        if isinstance(right, Const) and right.value is None and not isinstance(left, Unknown):
            return Const(negative, "bool")
        if isinstance(left, (Items, Table)) and isinstance(right, Const):
            return Const(negative, "bool") if right.kind != "Packed" else Unknown()
        if isinstance(left, Unknown) and isinstance(right, Unknown) and left.key and right.key:
            key = ("same", frozenset((left.key, right.key)))
            return Unknown(("not", key) if negative else key)
        if isinstance(left, _KNOWN_APART) and isinstance(right, _KNOWN_APART):
            return Const((left == right) is not negative, "bool")
        if _certainly_differ(op, left, right) or _certainly_differ(op, right, left):
            return Const(negative, "bool")
        if _device(left) and _device(right) and left.gpu is not right.gpu:
            return Const(negative, "bool")
        return Unknown()
    if kind in _CONTAINING:
        if isinstance(left, Const) and isinstance(right, Items) and right.items is not None:
            values = [item.only for item in right.items]
            if all(isinstance(item, Const) for item in values):
                found = any(isinstance(item, Const) and item.value == left.value for item in values)
                return Const(found is not negative, "bool")
        if isinstance(left, Const) and isinstance(right, Table):
            if right.get(left.value) is not None:
                return Const(not negative, "bool")
            if right.keywords and not may_have_key(right, left.value):
                return Const(negative, "bool")
            return Unknown()  # any other dict may have more keys
        if isinstance(left, Unknown) and left.key is not None and isinstance(right, Items):
            names = [item.constant for item in right.items or ()]
            key = ("among", left.key, tuple(names))
            return Unknown(("not", key) if negative else key)
        if isinstance(left, Const) and isinstance(right, Const):
            a, b = left.value, right.value
            if isinstance(a, str) and isinstance(b, str):
                return Const((a in b) is not negative, "bool")
        if isinstance(left, Const) and isinstance(right, Unknown) and right.key is not None:
            key = ("in", right.key, left.value)
            if left.value in ("cuda", "gpu", "GPU"):
                key = names_cuda(right.key)
            return Unknown(("not", key) if negative else key)
        return Unknown()
    if isinstance(left, Const) and isinstance(right, Const):
        a, b = left.value, right.value
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return Const(_ORDER[type(op)](a, b), "bool")
    if isinstance(left, Const) and isinstance(right, Unknown) and type(op) in _MIRRORED:
        return compare(_MIRRORED[type(op)](), right, left)
    if isinstance(left, Unknown) and left.key is not None and isinstance(right, Const):
        if left.key == ("gpu-count",):
            return _gpu_count(op, right.value)
        return _ordered(op, left.key, right.value)
    return Unknown()


def compare_values(op: ast.cmpop, left: Value, right: Value) -> Value:
    """``left op right`` for all pairs of alternatives."""
    choices = [
        Choice(compare(op, a.atom, b.atom), a.when | b.when)
        for a in left.choices
        for b in right.choices
    ]
    return joined(choices)


def _certainly_differ(op: ast.cmpop, code: Atom, atom: Atom) -> bool:
    """Whether `code` is a function, class or module, and `atom` certainly isn't."""
    if not isinstance(code, (*_KNOWN_APART, ProjectModule)):
        return False
    if isinstance(atom, Instance):  # it may define __eq__
        return isinstance(op, (ast.Is, ast.IsNot)) and atom.cls.plain
    return isinstance(atom, (Const, Items, Table))


def _is_truth(atom: Atom, op: ast.cmpop) -> TypeGuard[Const]:
    """Whether `atom` is a bool, or equals one in a comparison by equality."""
    if not isinstance(atom, Const):
        return False
    return atom.kind == "bool" or (isinstance(op, (ast.Eq, ast.NotEq)) and atom.value in (0, 1))


_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


def _ordered(op: ast.cmpop, key: Key, value: Hashable) -> Atom:
    """The four orders as two questions, so that opposites are recognised."""
    question: Key = ("lt" if isinstance(op, (ast.Lt, ast.GtE)) else "le", key, value)
    return Unknown(("not", question) if isinstance(op, (ast.Gt, ast.GtE)) else question)


def _gpu_count(op: ast.cmpop, value: Hashable) -> Atom:
    if (isinstance(op, ast.Gt) and value == 0) or (isinstance(op, ast.GtE) and value == 1):
        return Unknown(GPU_PRESENT)
    if (isinstance(op, ast.Lt) and value == 1) or (isinstance(op, ast.LtE) and value == 0):
        return Unknown(("not", GPU_PRESENT))
    return _ordered(op, ("gpu-count",), value)
