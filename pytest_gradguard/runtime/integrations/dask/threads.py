"""`dask.threaded`: what `compute` runs in threads of this process, dask's default.

Nothing is pickled there. The tasks of a graph are looked at in the threads that run them.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.dask import nodes
from pytest_gradguard.runtime.kernel import probes, running, task_seeds
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import (
    attempt,
    carried,
    fault,
)
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import THREADS

_DASK = frozenset({"dask"})


def patches(module: ModuleType) -> list[Patch]:
    """Watch what `dask.threaded` runs."""
    nodes.task_spec()
    return [observe(module, "get_async", before=_begin, arguments=_arguments, after=Call.announce)]


def _begin(submit: Any, num_workers: Any, *args: Any, **kwargs: Any) -> Call | None:
    return calling.begin(THREADS, passing=_DASK) if _has_threads(submit, num_workers) else None


def _arguments(call: Call, /, submit: Any, *args: Any, **kwargs: Any) -> Arguments:
    return (functools.partial(_submit, submit, call), *args), kwargs


def _has_threads(submit: Any, num_workers: Any) -> bool:
    kind: Any = sys.modules["concurrent.futures.thread"].ThreadPoolExecutor
    return num_workers != 1 and isinstance(getattr(submit, "__self__", None), kind)


def _submit(submit: Any, call: Call, run: Any, batch: Any) -> Any:
    try:
        items = [item for entry in batch for item in nodes.items_of(*entry[1])]
        asked = probes.ship(call, items) if items else {}
        if asked:
            return submit(_run, call, asked, items, run, batch)
    except Exception as error:
        fault(error)
    return submit(run, batch)


def _run(call: Call, asked: Any, items: Any, run: Any, batch: Any) -> Any:
    """Run nodes of a graph as dask does, in its thread."""

    def gave(results: Any) -> Any:  # what a task raises is one of them
        values = [value for _, value, failed in results if not failed]
        return [value[0] for value in values] if len(values) == len(items) else None

    run = attempt(task_seeds.seeded, asked, run, instead=run)
    return carried(functools.partial(run, batch), running.in_thread, call, items, asked, gave)
