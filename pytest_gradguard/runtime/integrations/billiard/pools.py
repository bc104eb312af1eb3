"""The methods of billiard's pools: `apply_async`, and what all kinds of `map` end in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.pools.methods import Begin, begins, watched_apply
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import futures
from pytest_gradguard.runtime.kernel.dispatch.shipped import guarded
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of `billiard.pool`, whose `Pool` has these workers."""
    begin = begins(workers, module.ThreadPool)
    return [
        Patch(module.Pool, "apply_async", functools.partial(watched_apply, begin)),
        Patch(module.Pool, "_map_async", functools.partial(_watched_map, begin, module)),
        Patch(module.Pool, "imap", functools.partial(_watched_imap, begin)),
        Patch(module.Pool, "imap_unordered", functools.partial(_watched_imap, begin)),
    ]


def _watched_map(begin: Begin, module: ModuleType, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def _map_async(
        self: Any, func: Any, iterable: Any, mapper: Any, *args: Any, **more: Any
    ) -> Any:
        call = attempt(begin, self)
        try:
            if call is None:
                return original(self, func, iterable, mapper, *args, **more)
            tasks = _tasks_of(call, func, iterable, star=mapper is module.starmapstar)
            result = original(self, run_task, tasks, module.mapstar, *args, **more)
        except BaseException as error:
            without_this_frame(error)
            raise
        attempt(futures.belongs_to, result, call)
        return result

    return _map_async


def _watched_imap(begin: Begin, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def imap(self: Any, func: Any, iterable: Any, *args: Any, **more: Any) -> Any:
        call = attempt(begin, self)
        try:
            if call is None:
                return original(self, func, iterable, *args, **more)
            result = original(self, run_task, _tasks_of(call, func, iterable), *args, **more)
        except BaseException as error:
            without_this_frame(error)
            raise
        if hasattr(result, "next"):  # with chunks it is a generator, which takes no attributes
            attempt(futures.belongs_to, result, call)
        return result

    return imap


class _Tasks:
    """The tasks of a call, made as the pool asks for them; for a collection of known length."""

    def __init__(self, call: Call, function: Any, arguments: Any, star: bool) -> None:
        self._call = call
        self._function = function
        self._arguments = arguments
        self._star = star

    def __len__(self) -> int:
        return len(self._arguments)

    def __iter__(self) -> Iterator[Any]:
        for one in self._arguments:
            args = tuple(one) if self._star else (one,)
            task = attempt(guarded, self._call, self._function, args, {})
            yield functools.partial(self._function, *args) if task is None else task
            del one, args, task  # they would live on until the next one is asked for


def _tasks_of(call: Call, function: Any, arguments: Any, star: bool = False) -> Iterable[Any]:
    tasks = _Tasks(call, function, arguments, star)
    return tasks if hasattr(arguments, "__len__") else iter(tasks)


def run_task(task: Callable[[], Any]) -> Any:
    """Run one task of a `map` in a worker."""
    return task()


def answer(frame: FrameType, error: BaseException) -> None:
    """Answer, in a worker, for the task that its loop in `frame` runs."""
    known, names = frame.f_locals, frame.f_globals
    info = names["ExceptionInfo"]((type(error), error, error.__traceback__))
    outcome = known["job"], known["i"], (False, info), known["inqW_fd"]
    known["put"]((names["READY"], outcome))
