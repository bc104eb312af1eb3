"""The iterations of a `DataLoader`, and how its worker processes start.

Each iteration of a loader with workers is one call. Its tasks are what the workers do with the
dataset, which `working` looks at there.

Forked workers next to a parent that uses the GPU are what loaders are for. Only one that needs CUDA
itself is reported (GG203).
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.loader import (
    LOADERS,
    LOOP,
    STATEFUL_WORKERS,
    WORKERS,
    working,
)
from pytest_gradguard.runtime.integrations.loader.working import WorkerRun
from pytest_gradguard.runtime.kernel import calls, frameworks, inline, transfer
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch.calling import Family
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import Beside, attempt, without_this_frame
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch, not_counted
from pytest_gradguard.runtime.kernel.registry import UnknownLayout
from pytest_gradguard.runtime.pitfalls.loaders import gg206
from pytest_gradguard.runtime.pitfalls.random import gg305


class _Starting(threading.local):
    """The iteration whose workers this thread starts, and whether its loader waits forever."""

    call: Call | None = None
    patient: bool = True


_starting = _Starting()
_families: weakref.WeakKeyDictionary[Any, Family] = weakref.WeakKeyDictionary()


def patches(module: ModuleType) -> list[Patch]:
    """Watch the iterations of torch's loaders."""
    start = Patch(sys.modules["multiprocessing.process"].BaseProcess, "start", _watched_start)
    return [*_patches(WORKERS, module, "_MultiProcessingDataLoaderIter"), start]


def stateful_patches(module: ModuleType) -> list[Patch]:
    """Watch the iterations of torchdata's loaders, whose workers run a loop of its own."""
    return _patches(STATEFUL_WORKERS, module, "_StatefulMultiProcessingDataLoaderIter")


def _patches(workers: str, module: ModuleType, iterator: str) -> list[Patch]:
    missing = working.missing_parameter(getattr(sys.modules[workers], LOOP))
    if missing is not None:
        raise UnknownLayout(f"{LOOP} has no parameter {missing!r}")
    kind = getattr(module, iterator)
    return [
        Patch(kind, "__init__", _watched_iterator),
        observe(kind, "_next_data", after=_fetched, failed=_not_fetched),
    ]


def _watched_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    @not_counted  # torch warns of workers that it cannot start, at the line that wanted them
    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        call = attempt(_begin, loader)
        before = _starting.call, _starting.patient
        _starting.call, _starting.patient = call, not getattr(loader, "timeout", 0)
        try:
            original(self, loader, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            attempt(_ended, call, error, loader)
            raise
        finally:
            _starting.call, _starting.patient = before
        if call is not None:
            self._gradguard_call = call
            self._gradguard_asked = attempt(gg206.asked, loader)

    return __init__


def _ended(
    call: Call | None, error: BaseException, loader: Any = None, asked: gg206.Asked | None = None
) -> None:
    """An iteration of `loader`, or one of which is known what it asked, has ended with `error`."""
    if call is None:
        return
    attempt(lambda: gg206.failed(asked or gg206.asked(loader), error))
    calls.failed(call, error)


def _begin(loader: Any) -> Call | None:
    """The record of an iteration that begins now; None, where nobody listens."""
    call = calls.begin()
    if call is None or call.site is None:
        return None
    call.kind = LOADERS
    inline.note_shipped(LOADERS)
    if getattr(loader, "persistent_workers", False):
        call.remembered[gg305.PERSISTENT] = True
    try:
        call.shared = _families.setdefault(loader, Family())
    except TypeError:
        pass  # a class of the program's own that cannot be hashed: each iteration stands alone
    frameworks.watch_reductions()  # a standard pickler copies its table before it meets the dataset
    return call


def _fetched(data: Any, iterator: Any) -> None:
    call = getattr(iterator, "_gradguard_call", None)
    if call is not None and call.evidence:
        call.announce()


def _not_fetched(error: BaseException, iterator: Any) -> None:
    call = getattr(iterator, "_gradguard_call", None)
    if call is not None and not isinstance(error, StopIteration):
        _ended(call, error, asked=iterator._gradguard_asked)


def _watched_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        call = _starting.call
        run = None if call is None else attempt(_prepared, self, call)
        if call is None or run is None:
            return original(self)
        self.run = run
        try:
            with Beside(_shipping, run, call):
                return original(self)
        except BaseException as error:
            without_this_frame(error)
            raise
        finally:
            del self.run

    return start


def _shipping(run: WorkerRun, call: Call) -> Any:
    return None if run.forked else transfer.during(TaskShipment(call, run.loading.items))


def _prepared(process: Any, call: Call) -> WorkerRun | None:
    """What runs in a worker that is about to start; None where it is none of the loader's."""
    if getattr(process._target, "__name__", "") != LOOP or "run" in vars(process):
        return None
    method = getattr(process, "_start_method", None)
    method = method or sys.modules["multiprocessing"].get_start_method()
    if sys.modules.get(working.__name__) is not working:
        return None  # somebody has imported the guard twice: ours cannot be pickled
    return WorkerRun(process, call, forked=method == "fork", patient=_starting.patient)
