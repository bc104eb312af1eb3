"""The tasks of pools in the calling process: their results are there as the methods return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import inline
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import THREADS, Workers

_NO_KEYWORDS: dict[str, Any] = {}
Original = Callable[..., Any]


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of a module that is built as `multiprocessing.pool`."""
    made = _Inline(workers, module)
    return [
        Patch(module.Pool, "apply_async", made.apply_async),
        Patch(module.Pool, "_map_async", made.map_async),
        Patch(module.Pool, "imap", functools.partial(made.imap, unordered=False)),
        Patch(module.Pool, "imap_unordered", functools.partial(made.imap, unordered=True)),
    ]


class _Inline:
    """Stand-ins for the methods of the pools of one module."""

    def __init__(self, workers: Workers, module: ModuleType) -> None:
        self._workers = workers
        self._module = module

    def _begin(self, pool: Any, single: object = None) -> tuple[Workers, Call | None]:
        threads = isinstance(pool, self._module.ThreadPool)
        workers = THREADS if threads else self._workers
        call = calling.begin(workers, single=single)
        if call is not None and not threads:
            inline.initialize(pool, workers, call, pool._initializer, pool._initargs)
        return workers, call

    def _result(self, pool: Any, make: Callable[[], Any], done: Any, failed: Any) -> Any:
        result = self._module.ApplyResult(pool, done, failed)
        try:
            outcome = (True, make())
        except Exception as error:
            outcome = (False, error)
        result._set(0, outcome)
        return result

    def apply_async(self, original: Original) -> Original:
        @functools.wraps(original)
        def apply_async(
            pool: Any,
            func: Any,
            args: Any = (),
            kwds: Any = _NO_KEYWORDS,
            callback: Any = None,
            error_callback: Any = None,
        ) -> Any:
            pool._check_running()
            workers, call = self._begin(pool, pool)
            if call is None:
                return original(pool, func, args, kwds, callback, error_callback)
            run = functools.partial(inline.run, workers, call, func, args, kwds)
            return self._result(pool, run, callback, error_callback)

        return apply_async

    def map_async(self, original: Original) -> Original:
        @functools.wraps(original)
        def _map_async(
            pool: Any,
            func: Any,
            iterable: Any,
            mapper: Any,
            chunksize: Any = None,
            callback: Any = None,
            error_callback: Any = None,
        ) -> Any:
            pool._check_running()
            workers, call = self._begin(pool)
            if call is None:
                return original(pool, func, iterable, mapper, chunksize, callback, error_callback)
            star = mapper.__name__ == "starmapstar"

            def run() -> list[Any]:
                return list(_each(workers, call, func, iterable, star))

            return self._result(pool, run, callback, error_callback)

        return _map_async

    def imap(self, original: Original, *, unordered: bool) -> Original:
        @functools.wraps(original)
        def imap(pool: Any, func: Any, iterable: Any, chunksize: int = 1) -> Any:
            pool._check_running()
            workers, call = self._begin(pool)
            if call is None:
                return original(pool, func, iterable, chunksize)
            if unordered:
                inline.note_unordered("`imap_unordered`")
            return _Results(inline.future(workers, call, func, (one,), {}) for one in iterable)

        return imap


def _each(
    workers: Workers, call: Call, func: Any, iterable: Iterable[Any], star: bool
) -> Iterator[Any]:
    for one in iterable:
        yield inline.run(workers, call, func, tuple(one) if star else (one,), {})


class _Results:
    """The results of `imap`: an iterator whose `next` takes a timeout."""

    def __init__(self, futures: Iterable[Any]) -> None:
        self._futures = iter(list(futures))

    def __iter__(self) -> _Results:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """The next result."""
        return next(self._futures).result()

    __next__ = next
