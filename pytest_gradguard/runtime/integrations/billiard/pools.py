"""The methods of billiard's pools: `apply_async`, and what all kinds of `map` end in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, GeneratorType, ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.pools.methods import Begin, applies, begins
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import futures
from pytest_gradguard.runtime.kernel.dispatch.shipped import guarded
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of `billiard.pool`, whose `Pool` has these workers."""
    begin = begins(workers, module.ThreadPool)
    return [
        applies(begin, module.Pool),
        _maps(begin, module.Pool, "_map_async", functools.partial(_map_tasks, module)),
        _maps(begin, module.Pool, "imap", _imap_tasks),
        _maps(begin, module.Pool, "imap_unordered", _imap_tasks),
    ]


def _maps(begin: Begin, pool: type, name: str, tasks: Callable[..., Arguments]) -> Patch:
    return observe(
        pool, name, before=lambda self, *_, **__: begin(self), arguments=tasks, after=_mapped
    )


def _map_tasks(
    module: Any, call: Call, pool: Any, func: Any, iterable: Any, *args: Any, **more: Any
) -> Arguments:
    tasks = _tasks_of(call, func, iterable, star=args[0] is module.starmapstar)
    return (pool, run_task, tasks, module.mapstar, *args[1:]), more


def _imap_tasks(
    call: Call, pool: Any, func: Any, iterable: Any, *args: Any, **more: Any
) -> Arguments:
    return (pool, run_task, _tasks_of(call, func, iterable), *args), more


def _mapped(call: Call, result: Any, *_: Any, **__: Any) -> None:
    if not isinstance(result, GeneratorType):  # of `imap` with chunks: it takes no attributes
        futures.belongs_to(result, call)


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
