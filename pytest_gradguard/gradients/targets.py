"""Finds the tensors to watch, with names, in a module, model, tensor, dict or list."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from pytest_gradguard import keras_variables
from pytest_gradguard.gradients import flow
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.faults import attempt

_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}


class Item(NamedTuple):
    """One object to watch.

    Attributes:
        kind: ``"module"`` or ``"tensor"`` of torch, ``"model"`` or ``"variable"`` of TensorFlow.
        name: its dotted name; empty for a module or model that is watched on its own.
        value: the object.
    """

    kind: str
    name: str
    value: Any


def items_of(
    watched: Any, frame: FrameType | None = None, *, asked_by: str = "watch_gradients"
) -> list[Item]:
    """The modules, models, tensors and variables in `watched`.

    Args:
        watched: a module, a Keras model or layer, a tensor or variable, or a mapping or iterable
            of these, nested to any depth.
        frame: the caller's frame, for the name of a tensor that is watched on its own.
        asked_by: the function that the program has called.

    Raises:
        TypeError: it contains another object; the message says where.
        ValueError: it is empty.
    """
    __tracebackhide__ = True
    found = list(_walk(watched, "", asked_by))
    if not found:
        raise ValueError(f"{asked_by}: there is nothing to {_verb(asked_by)} (it is empty)")
    if len(found) == 1 and not found[0].name and found[0].kind in ("tensor", "variable"):
        item = found[0]
        return [item._replace(name=attempt(_local_name, item.value, frame) or item.kind)]
    return found


def _verb(asked_by: str) -> str:
    return asked_by.partition("_")[0]


def _walk(value: Any, name: str, asked_by: str) -> Iterator[Item]:
    __tracebackhide__ = True
    kind = _kind(value)
    if kind is not None:
        yield Item(kind, name, value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, join(name, str(key)), asked_by)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for index, inner in enumerate(value):
            if isinstance(inner, tuple) and len(inner) == 2 and isinstance(inner[0], str):
                # One of `named_parameters()`.
                yield from _walk(inner[1], join(name, inner[0]), asked_by)
            else:
                yield from _walk(inner, join(name, str(index)), asked_by)
    else:
        where = f" at {name!r}" if name else ""
        raise TypeError(
            f"{asked_by} cannot {_verb(asked_by)} {type(value).__name__!r}{where} (allowed: an "
            "nn.Module, a Keras model or layer, a tensor or variable, or a dict or list of these)"
        )


def _kind(value: Any) -> str | None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        if isinstance(value, torch.nn.Module):
            return "module"
        if isinstance(value, torch.Tensor):
            return "tensor"
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None or not hasattr(tensorflow, "Module"):
        return None
    keras: Any = sys.modules.get("keras")
    if keras is not None:
        if keras_variables.is_variable(value):
            return "variable"
        if isinstance(value, keras.Layer):
            return "model"
    if isinstance(value, (tensorflow.Variable, tensorflow.Tensor)):
        return "variable"
    return "model" if isinstance(value, tensorflow.Module) else None


def unwrapped(module: Any) -> Any:
    """The module inside wrappers such as `DataParallel` and `torch.compile`."""
    for _ in range(10):
        for base in type(module).__mro__:
            inner = _WRAPPERS.get(base.__name__)
            if inner is not None and base.__module__.startswith("torch."):
                break
        else:
            return module
        module = getattr(module, inner)
    return module


def join(prefix: str, name: str) -> str:
    """`name` below `prefix`, with a dot."""
    return f"{prefix}.{name}" if prefix else name


def _local_name(value: Any, frame: FrameType | None) -> str | None:
    if frame is None:
        return None
    for name, local in list(frame.f_locals.items()):
        if local is value:
            return name
    return written_at(frame)


def written_at(frame: FrameType) -> str | None:
    """Source of the first argument of the call in `frame`, if it is a plain name.

    For example `model.head[0].weight`; None before Python 3.11, which has no columns.
    """
    site = callsite.site_of(frame)
    where = site.location()
    source = flow.tree_of(site.path)
    if source is None or where.end_column is None:
        return None
    begin, end = (where.line, where.column), (where.end_line, where.end_column)
    for node in ast.walk(source):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        ends = (node.end_lineno, (node.end_col_offset or 0) + 1)
        if (node.lineno, node.col_offset + 1) == begin and ends == end:
            return ast.unparse(node.args[0]) if _is_plain(node.args[0]) else None
    return None


def _is_plain(node: ast.expr) -> bool:
    """Whether `node` is a name, with attributes and constant indices."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
            return False
        node = node.value
    return isinstance(node, ast.Name)
