"""joblib's tasks in the calling process, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.joblib import backends
from pytest_gradguard.runtime.kernel import calls, inline
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers


def patches(module: ModuleType) -> list[Patch]:
    """The patches of `joblib.parallel`."""
    return [Patch(module.Parallel, "__call__", _inline_call)]


def _inline_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: Any, iterable: Any) -> Any:
        backend = backends.of(self._backend)
        if backend is None or self._backend.effective_n_jobs(self.n_jobs) == 1:
            return original(self, iterable)
        call = calls.begin()
        if call is None:
            return original(self, iterable)
        call.kind = backend.workers
        if getattr(self, "return_as", "list") == "generator_unordered":
            inline.note_unordered("`return_as='generator_unordered'`")
        outputs = _run(backend.workers, call, iterable, _threads(self))
        if getattr(self, "return_generator", False):
            return (output for output in list(outputs))
        return list(outputs)

    return __call__


def _run(workers: Workers, call: Call, iterable: Any, threads: int | None) -> Iterator[Any]:
    for function, args, kwargs in iterable:
        with inline.threads(threads):
            output = inline.run(workers, call, function, args, kwargs)
        yield output


def _threads(parallel: Any) -> int | None:
    """How many threads of OpenMP's each worker of `parallel` has, where joblib limits them."""
    backend = parallel._backend
    if not getattr(backend, "supports_inner_max_num_threads", False):
        return None
    variables = backend._prepare_worker_env(n_jobs=backend.effective_n_jobs(parallel.n_jobs))
    limit = variables.get("OMP_NUM_THREADS")
    return int(limit) if limit else None
