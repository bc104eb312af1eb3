"""Runs the tasks of dask's own schedulers in the calling thread."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.kernel import inline
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers

_DASK = frozenset({"dask"})
_OF_PROCESSES = ("dumps", "loads", "get_id", "pack_exception")
"""What dask does with each node on its way to a process and back."""


def patches(workers: Workers, module: ModuleType) -> list[Patch]:
    """The patches of a scheduler's module."""
    return [Patch(module, "get_async", functools.partial(_inline_get, workers))]


def _inline_get(workers: Workers, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_async(submit: Any, num_workers: Any, *args: Any, **kwargs: Any) -> Any:
        call = calling.begin(workers, passing=_DASK) if num_workers != 1 else None
        if call is None:
            return original(submit, num_workers, *args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in _OF_PROCESSES}
        kwargs["chunksize"] = 1
        local: Any = sys.modules["dask.local"]
        return local.get_async(functools.partial(_submit, workers, call), 1, *args, **kwargs)

    return get_async


def _submit(workers: Workers, call: Call, run: Any, batch: Any) -> Any:
    return inline.future(workers, call, run, (batch,), {})
