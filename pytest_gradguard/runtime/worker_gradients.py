"""In the worker: which copies of shipped tensors got a gradient, and whether any of it leaves.

Nothing is looked at before a backward has run in the worker.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime import locate
from pytest_gradguard.runtime.evidence import Task
from pytest_gradguard.runtime.faults import without_this_frame
from pytest_gradguard.runtime.frameworks import torch as tensors
from pytest_gradguard.runtime.patching import Patch, Patches


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


_backwards = 0


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        global _backwards
        _backwards += 1
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise

    return _engine_run_backward


_patches = Patches([Patch(torch.autograd, "_engine_run_backward", _counting)])


def before_tasks() -> int:
    """Begin to count backwards; returns how many have run so far."""
    _patches.apply()
    return _backwards


def left_behind(
    before: int, items: Any, results: Any, task_of: Callable[[Any], Task]
) -> list[Left]:
    """What the tasks of a batch left in this worker since `before`.

    Args:
        before: what `before_tasks` returned.
        items: the tasks, each a function with its arguments.
        results: what they returned.
        task_of: the user's function behind a task.
    """
    if before == _backwards:
        return []
    left = []
    for (function, args, kwargs), result in zip(items, results, strict=False):
        with_gradient = _with_gradient(function, args, kwargs)
        if not with_gradient:
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
