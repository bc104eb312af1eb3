"""The executors' tasks in the calling process: `submit` returns futures that are done."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.executors.submitting import is_watched_elsewhere
from pytest_gradguard.runtime.kernel import inline, packages
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers

_SHUT_DOWN = ("_shutdown", "_shutdown_thread", "_broken")


class _Mapping(threading.local):
    pool: Any = None
    call: Call | None = None


_mapping = _Mapping()


def patches(name: str, workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of the class `name` of executors in a module."""
    kind = getattr(module, name)
    return [
        Patch(kind, "submit", functools.partial(_inline_submit, workers)),
        Patch(kind, "map", functools.partial(_inline_map, workers), inherited=True),
    ]


def _inline_submit(workers: Workers, original: Callable[..., Any]) -> Callable[..., Any]:
    passing = packages.around(original)

    @functools.wraps(original)
    def submit(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not args or is_watched_elsewhere(self, args) or _is_down(self):
            return original(self, *args, **kwargs)
        if _mapping.pool is self:
            call = _mapping.call
        else:
            call = calling.begin(workers, passing, single=self)
        if call is None:
            return original(self, *args, **kwargs)
        inline.initialize(self, workers, call, self._initializer, self._initargs)
        return inline.future(workers, call, args[0], args[1:], kwargs)

    return submit


def _is_down(executor: Any) -> bool:
    return any(getattr(executor, name, False) for name in _SHUT_DOWN)


def _inline_map(workers: Workers, original: Callable[..., Any]) -> Callable[..., Any]:
    passing = packages.around(original)

    @functools.wraps(original)
    def map(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        before = (_mapping.pool, _mapping.call)
        _mapping.pool, _mapping.call = self, calling.begin(workers, passing)
        try:
            kwargs.pop("chunksize", None)  # tasks run one by one
            return Executor.map(self, *args, **kwargs)
        finally:
            _mapping.pool, _mapping.call = before

    return map
