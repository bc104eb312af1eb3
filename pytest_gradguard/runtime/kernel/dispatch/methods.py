"""Wrappers for the usual methods that give tasks to a pool."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel import packages
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, futures
from pytest_gradguard.runtime.kernel.dispatch.remote import Split
from pytest_gradguard.runtime.kernel.dispatch.shipped import Shipped, guarded
from pytest_gradguard.runtime.kernel.faults import attempt, hidden_frame
from pytest_gradguard.runtime.kernel.observing import Arguments, observed
from pytest_gradguard.runtime.kernel.registry import Workers

Method = Callable[..., Any]


class _Mapping(threading.local):
    pool: Any = None
    call: Call | None = None


_mapping = _Mapping()


def submits(
    workers: Workers,
    split: Split | None = None,
    *,
    unwatched: Callable[[Any, tuple[Any, ...]], bool] = lambda pool, args: False,
    begun: Callable[[Any, Call], None] = lambda pool, call: None,
) -> Callable[[Method], Method]:
    """Wrap a method ``submit(self, function, *args, **kwargs)`` that returns a future.

    The method is called with one function without arguments instead, so it has to work for any such
    function: it is pickled, or called in a thread, once.

    Args:
        workers: the kind of workers that run the tasks.
        split: finds the program's tasks in one task, if that may be a chunk of them.
        unwatched: whether the guard ignores a call, from the pool and the arguments.
        begun: called with the pool and the call, as that begins.
    """

    def wrap(original: Any) -> Any:
        passing = packages.around(original)

        def ship(self: Any, /, *args: Any, **kwargs: Any) -> Shipped | None:
            if not args or unwatched(self, args):
                return None
            if _mapping.pool is self:
                call = _mapping.call
            else:
                call = calling.begin(workers, passing, single=self)
            if call is None:
                return None
            begun(self, call)
            return guarded(call, args[0], args[1:], kwargs, split)

        return observed(before=ship, arguments=_alone, after=futures.submitted)(original)

    return wrap


def _alone(task: Shipped, pool: Any, /, *_: Any, **__: Any) -> Arguments:
    return (pool, task), {}


def maps(workers: Workers) -> Callable[[Method], Method]:
    """Wrap a method that gives its tasks to a method wrapped by `submits`: together, one call.

    Args:
        workers: the kind of workers that run the tasks.
    """

    def wrap(original: Method) -> Method:
        passing = packages.around(original)

        @functools.wraps(original)
        def map(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            before = (_mapping.pool, _mapping.call)
            _mapping.pool, _mapping.call = self, attempt(calling.begin, workers, passing)
            try:
                with hidden_frame:
                    return original(self, *args, **kwargs)
            finally:
                _mapping.pool, _mapping.call = before

        return map

    return wrap
