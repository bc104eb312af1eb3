"""GG106: which copies of shipped tensors got a gradient in a worker, and whether any of it leaves.

Nothing is looked at before a backward has run in the worker.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime import backwards, locate
from pytest_gradguard.runtime.frameworks import torch as tensors
from pytest_gradguard.runtime.looks import After
from pytest_gradguard.runtime.tasks import Task, task_of


class Left(NamedTuple):
    """Gradients that a task left in its worker, in plain values so that it can be pickled.

    Attributes:
        task: the function that ran.
        shapes: the shapes of the copies that have a gradient.
        direct: the task was the `backward` of a tensor itself.
    """

    task: Task
    shapes: tuple[tuple[int, ...], ...]
    direct: bool


def begin(asked: None, process: bool) -> After:
    """Begin to count backwards, before the tasks of a batch."""
    before = backwards.count

    def after(items: Any, results: Any, error: BaseException | None) -> list[Left] | None:
        return None if before == backwards.count else roused(items, results, error)

    return after


def roused(items: Any, results: Any, error: BaseException | None) -> list[Left] | None:
    """What the tasks of a batch left behind, in which a backward has run."""
    if error is not None:
        return None
    return _left_behind(items, results) or None


def heard(call: Any, note: list[Left]) -> None:
    """Keep, in the parent, what a worker of `call` has left behind."""
    from pytest_gradguard.runtime import left

    left.remember(call, note)


def _left_behind(items: Any, results: Any) -> list[Left]:
    """What the tasks `items` of a batch left in this worker."""
    left = []
    for (function, args, kwargs), result in zip(items, results, strict=False):
        with_gradient = _with_gradient(function, args, kwargs)
        if not with_gradient or any(map(_trained_in_shared_memory, with_gradient)):
            continue
        shapes = tuple(tuple(int(size) for size in tensor.shape) for tensor in with_gradient)
        if _carries(result, set(shapes), sum(tensor.numel() for tensor in with_gradient)):
            continue
        owner = getattr(function, "__self__", None)
        direct = getattr(function, "__name__", "") == "backward" and tensors.is_tensor(owner)
        left.append(Left(task_of(function), shapes, direct))
    return left


def _with_gradient(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that came with a task and have a gradient now: copies arrive without one."""
    found: list[Any] = []

    def look(item: Any) -> bool:
        if not tensors.is_tensor(item):
            return False
        with torch._C.DisableTorchFunctionSubclass():
            if item.is_leaf and item.requires_grad and item.grad is not None:
                found.append(item)
        return True

    locate.find([("args", args), ("kwargs", kwargs), ("", function)], look)
    return found


def _trained_in_shared_memory(tensor: Any) -> bool:
    """Whether a task has changed `tensor` in memory that the parent sees (as Hogwild does).

    A tensor that torch's own reductions bring has been written to once, as it was rebuilt.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return bool(tensor.is_shared() and tensor._version > 1)


def _carries(result: Any, shapes: set[tuple[int, ...]], total: int) -> bool:
    """Whether a result holds something of the size of a gradient, a parameter, or all of them."""
    numpy: Any = sys.modules.get("numpy")
    array = () if numpy is None else numpy.ndarray
    carried = False

    def look(item: Any) -> bool:
        nonlocal carried
        shape: tuple[int, ...] | None = None
        if tensors.is_tensor(item):
            shape = tuple(int(size) for size in item.shape)
        elif isinstance(item, array):
            shape = tuple(item.shape)
        elif type(item) in (list, tuple):
            shape = _shape_of(item)
        if shape is not None and (shape in shapes or shape == (total,)):
            carried = True
        return tensors.is_tensor(item)

    locate.find([("", result)], look)
    return carried


def _shape_of(values: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers, as `Tensor.tolist` makes them."""
    shape: list[int] = []
    while type(values) in (list, tuple):
        shape.append(len(values))
        if not values:
            return None
        values = values[0]
    return tuple(shape) if isinstance(values, (int, float)) else None
