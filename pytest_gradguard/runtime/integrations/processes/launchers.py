"""The program's function behind that of a launcher of ranks, and the arguments that it was given.

Launchers start processes that run a function of their own. It prepends to the program's arguments,
most of them the rank: such a function stands for a partial of the program's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.faults import attempt

Task = tuple[Any, Any, Any]
"""A function, its arguments and its keywords."""

_NESTED = 5
"""How many launchers may stand on each other."""


def task_behind(function: Any, args: Any, kwargs: Any) -> Task:
    """The program's function in what a process runs, and its arguments."""
    task: Task = (function, args, kwargs)
    for _ in range(_NESTED):
        behind = attempt(_behind, *task)
        if behind is None:
            break
        task = behind
    return task


def _behind(function: Any, args: Any, kwargs: Any) -> Task | None:
    if issubclass(type(function), functools.partial):
        function, args = function.func, (*function.args, *args)
    named = function if plain_attribute(function, "__qualname__") else type(function)
    key = (plain_attribute(named, "__module__"), plain_attribute(named, "__qualname__"))
    find = _LAUNCHERS.get(key)
    return None if find is None else find(function, *args)


def _spawned(launcher: Any, function: Any, rank: Any, args: Any, *rest: Any) -> Task:
    return functools.partial(function, rank), args, {}


def _elastic(launcher: Any, rank: Any, function: Any, args: Any, *rest: Any) -> Task:
    return function, args[rank], {}


def _prepared(launcher: Any, rank: Any, *args: Any) -> Task:
    return launcher.launcher, args, {}


def _of_fabric(launcher: Any, rank: Any, function: Any, args: Any, kwargs: Any, *rest: Any) -> Task:
    return function, args, kwargs


def _of_trainer(launcher: Any, rank: Any, trainer: Any, *rest: Any) -> Task:
    return _of_fabric(launcher, rank, *rest)


def _set_up(launcher: Any, function: Any, fabric: Any, *args: Any) -> Task:
    return functools.partial(function, fabric), args, {}


_IN_LIGHTNING = "strategies.launchers.multiprocessing"
_METHOD = "_MultiProcessingLauncher._wrapping_function"
_LAUNCHERS: dict[tuple[Any, Any], Callable[..., Task]] = {
    ("torch.multiprocessing.spawn", "_wrap"): _spawned,
    ("torch.distributed.elastic.multiprocessing.api", "_wrap"): _elastic,
    ("accelerate.utils.launch", "PrepareForLaunch"): _prepared,
}
for _fabric in ("lightning.fabric", "lightning_fabric"):
    _LAUNCHERS[f"{_fabric}.{_IN_LIGHTNING}", _METHOD] = _of_fabric
    _LAUNCHERS[f"{_fabric}.fabric", "Fabric._wrap_with_setup"] = _set_up
for _trainer in ("lightning.pytorch", "pytorch_lightning"):
    _LAUNCHERS[f"{_trainer}.{_IN_LIGHTNING}", _METHOD] = _of_trainer
