"""The methods of pools.

Every method of a pool ends in one of two: `apply_async`, or the generator of tasks behind all kinds
of `map`. The first is wrapped to ship a `ShippedTask`, the second to yield them.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, futures
from pytest_gradguard.runtime.kernel.dispatch.remote import Chunk
from pytest_gradguard.runtime.kernel.dispatch.shipped import Shipped, guarded
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    hidden_frame,
)
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import THREADS, Workers
from pytest_gradguard.runtime.pitfalls.forks.ending_pools import workers_hold_no_lock

_NO_KEYWORDS: dict[str, Any] = {}
Begin = Callable[..., "Call | None"]


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of a module that is built as `multiprocessing.pool`.

    Args:
        workers: the kind of workers of its `Pool`; those of its `ThreadPool` are threads.
        module: the module.
    """
    begin = begins(workers, module.ThreadPool)
    return [
        applies(begin, module.Pool),
        observe(module.Pool, "_guarded_task_generation", result=functools.partial(_guarded, begin)),
        Patch(module.Pool, "terminate", _watched_terminate),
    ]


def begins(workers: Workers, threads: type) -> Begin:
    """What begins a call of a pool with these workers; pools of the type `threads` have threads."""
    return functools.partial(_begin, workers, threads)


def _begin(workers: Workers, threads: type, pool: Any, single: object = None) -> Call | None:
    """The call that begins now."""
    process = not isinstance(pool, threads)
    call = calling.begin(workers if process else THREADS, single=single)
    if call is not None and process:
        call.pool = weakref.ref(pool)
        call.workers = functools.partial(_workers, call.pool)
        call.initializer = getattr(pool, "_initializer", None)
    return call


def _workers(pool: weakref.ref[Any]) -> list[Any]:
    return list(getattr(pool(), "_pool", None) or ())


def applies(begin: Begin, pool: type) -> Patch:
    """Watch `apply_async`, which ships one task."""
    ship = functools.partial(_ship, begin)
    return observe(pool, "apply_async", before=ship, arguments=_alone, after=futures.submitted)


def _ship(
    begin: Begin, pool: Any, func: Any, args: Any = (), kwds: Any = _NO_KEYWORDS, *_: Any, **__: Any
) -> Shipped | None:
    call = begin(pool, single=pool)
    return None if call is None else guarded(call, func, args, kwds, chunk_of)


def _alone(
    task: Shipped, pool: Any, func: Any, args: Any = (), kwds: Any = None, *others: Any, **more: Any
) -> Arguments:
    return (pool, task, (), {}, *others), more


def leave_alone(pool: Any) -> None:
    """Let `pool`, which a library has made for itself, be given tasks without a look at each.

    It lasts until the pool is terminated.
    """
    original = getattr(type(pool).apply_async, "__wrapped__", None)
    if original is not None:
        pool.apply_async = types.MethodType(original, pool)


def chunk_of(function: Any, args: Any, kwargs: Any) -> Chunk | None:
    """The program's tasks in a chunk of `map`: mapstar((function, (argument, …)))."""
    if (
        len(args) == 1
        and issubclass(type(function), types.FunctionType)
        and str(function.__module__).endswith(".pool")
    ):
        name = function.__name__
        if name in ("mapstar", "starmapstar"):
            inner, chunk = args[0]
            return Chunk(
                inner,
                chunk,
                star=name == "starmapstar",
                around=lambda other: (function, ((other, chunk),), kwargs),
            )
    return None


def _guarded(
    begin: Begin, tasks: Iterator[Any], pool: Any, result_job: Any, func: Any, iterable: Any
) -> Iterator[Any] | None:
    call = begin(pool)
    if call is None:
        return None
    result = pool._cache.get(result_job)
    if result is not None:
        futures.belongs_to(result, call)
    return _guarding(tasks, call)


def _guarding(tasks: Iterator[Any], call: Call) -> Iterator[Any]:
    for task in tasks:
        job, index, func, args, kwds = task
        if plain_attribute(func, "__name__") != "_helper_reraises_exception":
            instead = attempt(guarded, call, func, args, kwds, chunk_of)
            if instead is not None:
                task = (job, index, instead, (), {})
        func = args = kwds = instead = None
        yield task


def _watched_terminate(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def terminate(self: Any) -> Any:
        vars(self).pop("apply_async", None)  # see `leave_alone`; it refers to the pool
        with hidden_frame, Beside(workers_hold_no_lock, self):
            return original(self)

    return terminate


def answer(frame: FrameType, error: BaseException) -> None:
    """Answer, in a worker, for the task that its loop in `frame` runs."""
    known = frame.f_locals
    known["put"]((known["job"], known["i"], (False, error)))
