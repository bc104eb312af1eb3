"""Ray's tasks and actors drawing as their numbers say (`kernel/task_seeds`).

Ray exports a function or class once, and nothing but its name goes along with a single task: so the
numbers are in that name. An actor that the program has named itself draws as that name says.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel import collector, task_seeds
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.task_seeds import Numbers

_MARK = " gradguard:"
_unique = itertools.count()


def named(call: Call, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a task of `call`, with its numbers in its name."""
    numbers = task_seeds.ship(call, (None,))
    if numbers is None:
        return options
    words = [",".join(map(str, numbers.call)), str(numbers.first), f"{os.getpid()}-{next(_unique)}"]
    return {**options, "name": f"{options.get('name') or ''}{_MARK}{':'.join(words)}"}


def of_actor(call: Call, options: dict[str, Any]) -> dict[str, Any]:
    """The options of an actor that `call` makes, named unless the program has named it."""
    if not options.get("name"):
        return named(call, options)
    if task_seeds.numbers_of(call) is not None:
        call.remembered[task_seeds.NAME] = _named_by_the_program(options["name"])
    return options


def _named_by_the_program(name: str) -> Numbers:
    return Numbers((zlib.crc32(name.encode()),))


def seeded(exported: Any) -> Any:
    """A function or class in a worker, such that its tasks draw as they are numbered."""
    if not isinstance(exported, type):
        return _seeded(exported)
    for name, method in inspect.getmembers(exported, inspect.isfunction):
        if not name.startswith("__ray_"):
            setattr(exported, name, _seeded(method))
    return exported


class _Thread(threading.local):
    inside = False


_thread = _Thread()


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    if any(
        is_lazy(function)
        for is_lazy in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
    ):
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = None if _thread.inside else attempt(_numbers, function.__name__)
        try:
            if numbers is None:
                return function(*args, **kwargs)
            _thread.inside = True
            inside = collector.here.inside
            attempt(collector.enter, inside)  # so that the calls that it makes itself are numbered
            try:
                return task_seeds.Seeded(function, numbers)(*args, **kwargs)
            finally:
                attempt(collector.leave, inside)
                _thread.inside = False
        except BaseException as error:
            without_this_frame(error)
            raise

    return run


def _numbers(method: str) -> Numbers | None:
    """The numbers of the task that this thread runs."""
    context = sys.modules["ray"].get_runtime_context()
    making = context.get_actor_id() is not None and method == "__init__"
    name = (context.get_actor_name() if making else context.get_task_name()) or ""
    _, mark, words = name.rpartition(_MARK)
    if not mark:
        return _named_by_the_program(name) if making and name else None
    key, first, _ = words.split(":")
    return Numbers(tuple(map(int, key.split(","))), int(first))
