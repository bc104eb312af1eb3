"""Copies of objects as a process would have them; objects with gradients are not copied."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import locate

_MOST = 20_000
"""How many objects are searched."""
_BY_REFERENCE = (type, FunctionType, BuiltinFunctionType, ModuleType)
_HANDLES = frozenset(
    {"ray._raylet.ObjectRef", "ray.actor.ActorHandle", "distributed.client.Future"}
)
"""Names of types that refer to results, or to an actor."""
_OF_TENSORFLOW = ("tensorflow", "keras")


def copied(item: Any, is_kept: Callable[[Any], bool], memo: dict[int, Any] | None = None) -> Any:
    """A deep copy of `item`, with its kept objects uncopied; `item` itself if that fails.

    Args:
        item: the object.
        is_kept: whether an object in it is kept.
        memo: gets the copies, by the ids of the originals.
    """
    memo = {} if memo is None else memo

    def wanted(inner: Any) -> bool:
        if is_of_tensorflow(inner) or is_kept(inner):
            memo[id(inner)] = inner
            return True
        return False

    try:
        locate.find([("", item)], wanted, limit=_MOST)
        return memo[id(item)] if id(item) in memo else copy.deepcopy(item, memo)
    except Exception:  # it cannot be copied: a process would not have it either
        return item


class _Pickler(pickle.Pickler):
    """Pickles everything except kept objects, which it collects."""

    def __init__(self, file: Any, is_kept: Callable[[Any], bool]) -> None:
        super().__init__(file)
        self._is_kept = is_kept
        self.kept: list[Any] = []

    def persistent_id(self, item: Any) -> int | None:
        """The index of `item` among the kept objects; None: it is pickled."""
        kept = isinstance(item, _BY_REFERENCE) or is_of_tensorflow(item) or _name(item) in _HANDLES
        if not (kept or self._is_kept(item)):
            return None
        self.kept.append(item)
        return len(self.kept) - 1


class _Unpickler(pickle.Unpickler):
    """Reads the output of `_Pickler`."""

    def __init__(self, file: Any, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, place: int) -> Any:
        """The kept object of that index."""
        return self._kept[place]


def pickled(item: Any, is_kept: Callable[[Any], bool]) -> Any:
    """A copy of `item` by pickling, with its kept objects uncopied; `item` itself if that fails."""
    file = io.BytesIO()
    pickler = _Pickler(file, is_kept)
    try:
        pickler.dump(item)
        file.seek(0)
        return _Unpickler(file, pickler.kept).load()
    except Exception:  # a process would not have it either
        return item


def _name(item: Any) -> str:
    return f"{type(item).__module__}.{type(item).__qualname__}"


def is_of_tensorflow(item: Any) -> bool:
    """Whether `item` is an object of TensorFlow or Keras, which may carry gradients."""
    return type(item).__module__.partition(".")[0] in _OF_TENSORFLOW


def is_data(item: Any) -> bool:
    """Whether `item` is an array, or a torch tensor that carries no gradient."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and type(item) is numpy.ndarray:
        return bool(item.dtype != object)
    torch: Any = sys.modules.get("torch")
    return torch is not None and type(item) is torch.Tensor and not item.requires_grad


def with_own_data(item: Any, memo: dict[int, Any], *, tensors: bool) -> Any:
    """`item`, with copies of the arrays and tensors in its plain containers.

    Args:
        item: an argument of a task.
        memo: the copies made for the task so far, by the originals' ids.
        tensors: copy tensors, too; otherwise they share their memory with the worker.
    """
    if id(item) in memo:
        return memo[id(item)]
    made = item
    kind = type(item)
    if is_data(item):
        if kind.__module__ == "numpy":
            made = item.copy()
        elif tensors:
            made = item.clone()
    elif kind in (list, tuple):
        inner = [with_own_data(one, memo, tensors=tensors) for one in item]
        if any(new is not old for new, old in zip(inner, item, strict=True)):
            made = kind(inner)
    elif kind is dict:
        values = {key: with_own_data(one, memo, tensors=tensors) for key, one in item.items()}
        if any(values[key] is not item[key] for key in item):
            made = values
    elif kind is functools.partial:
        args = with_own_data(item.args, memo, tensors=tensors)
        keywords = with_own_data(item.keywords, memo, tensors=tensors)
        if args is not item.args or keywords is not item.keywords:
            made = functools.partial(item.func, *args, **keywords)
    memo[id(item)] = made
    return made
