"""Truth: what a test tells, and under which conditions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from typing import Any

from gradguard_lint.semantics.core import GPU_FLAGS, GPU_PRESENT
from gradguard_lint.semantics.values import (
    Atom,
    Bound,
    Class,
    Const,
    Delayed,
    Function,
    Items,
    Key,
    Partial,
    TaskCall,
    Thing,
    Unknown,
)


def denies_gpu(node: ast.expr, truth: bool) -> bool:
    """Whether a test says by its names that no GPU is used: ``gpus == 0``, ``use_cuda`` false."""
    if _flag(node):
        return not truth
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _flag(node.left):
        right = node.comparators[0]
        if isinstance(right, ast.Constant):
            if isinstance(node.ops[0], (ast.Eq, ast.Is)) and not right.value:
                return truth
            if isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) and not right.value:
                return not truth
            if (isinstance(node.ops[0], ast.Gt) and right.value == 0) or (
                isinstance(node.ops[0], ast.GtE) and right.value == 1
            ):
                return not truth
    return False


def _flag(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    return name in GPU_FLAGS


def plain_condition(key: Key, truth: bool) -> tuple[Key, bool]:
    """The condition "`key` is `truth`" without negations."""
    while isinstance(key, tuple) and key and key[0] == "not":
        key, truth = key[1], not truth
    return (GPU_PRESENT if key == ("gpu-list",) else key, truth)


def truth_of(atom: Atom) -> bool | None:
    """Whether `atom` is true, where that is known."""
    if isinstance(atom, Const):
        return bool(atom.value)
    if isinstance(atom, Items):
        return bool(atom.items) if atom.items is not None else None
    if isinstance(atom, (Function, Class, Bound, Partial, Delayed, TaskCall)):
        return True
    if isinstance(atom, Thing) and atom.kind in ("model", "optimizer"):
        return True
    return None


_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def compare(op: ast.cmpop, left: Atom, right: Atom) -> Atom:
    """What ``left op right`` is."""
    negative = isinstance(op, (ast.NotEq, ast.IsNot, ast.NotIn))
    if isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        if isinstance(left, Const) and isinstance(right, Const):
            return Const((left.value == right.value) is not negative, "bool")
        if isinstance(left, Const):
            left, right = right, left
        if isinstance(left, Unknown) and left.key == ("gpu-count",) and right == Const(0, "int"):
            return Unknown(GPU_PRESENT if negative else ("not", GPU_PRESENT))
        if isinstance(left, Unknown) and left.key is not None and isinstance(right, Const):
            key: Key = ("eq", left.key, right.value)
            return Unknown(("not", key) if negative else key)
        if isinstance(right, Const) and right.value is None and not isinstance(left, Unknown):
            return Const(negative, "bool")
        if isinstance(left, Thing) and left.kind == "device" and isinstance(right, Const):
            return Const(str(left.name).startswith(str(right.value)) is not negative, "bool")
        return Unknown()
    if isinstance(op, (ast.In, ast.NotIn)):
        if isinstance(left, Const) and isinstance(right, Items) and right.items is not None:
            values = [item.only for item in right.items]
            if all(isinstance(item, Const) for item in values):
                found = any(isinstance(item, Const) and item.value == left.value for item in values)
                return Const(found is not negative, "bool")
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
                key = ("contains", right.key, "cuda")
            return Unknown(("not", key) if negative else key)
        return Unknown()
    if isinstance(left, Const) and isinstance(right, Const):
        a, b = left.value, right.value
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return Const(_ORDER[type(op)](a, b), "bool")
    if isinstance(left, Unknown) and left.key is not None and isinstance(right, Const):
        if left.key == ("gpu-count",):
            return _gpu_count(op, right.value)
        return Unknown(("cmp", left.key, type(op).__name__, right.value))
    return Unknown()


def _gpu_count(op: ast.cmpop, value: Hashable) -> Atom:
    if isinstance(op, ast.Gt) and value == 0:
        return Unknown(("gpu-present",))
    if isinstance(op, ast.GtE) and value == 1:
        return Unknown(("gpu-present",))
    if (isinstance(op, ast.Lt) and value == 1) or (isinstance(op, ast.LtE) and value == 0):
        return Unknown(("not", ("gpu-present",)))
    return Unknown(("cmp", ("gpu-count",), type(op).__name__, value))
