"""joblib's `Parallel`: calls begin and batches leave."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from pytest_gradguard.runtime.integrations import joblib
from pytest_gradguard.runtime.integrations.joblib import backends
from pytest_gradguard.runtime.integrations.joblib.backends import ThreadBatch
from pytest_gradguard.runtime.kernel import calls, probes, travelling, worker
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import (
    attempt,
    fault,
    freed,
    theirs_only,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import UnknownLayout
from pytest_gradguard.runtime.kernel.shipment import Shipment
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.transfer import bracketed
from pytest_gradguard.runtime.kernel.travelling import PLAIN
from pytest_gradguard.runtime.pitfalls.lost.pickling_errors import watched_dump

CALL = "_gradguard_call"
"""The attribute of a `Parallel` that holds its call while it runs."""

_NO_FUNCTION = object()
_unpickling: list[ModuleType] = [worker]
"""The modules that workers import by name."""


def patches(module: ModuleType) -> list[Patch]:
    """Watch the calls of `Parallel`, and the batches that leave."""
    joblib.batches = module.BatchedCalls
    if "pickle_cache" not in inspect.signature(module.BatchedCalls).parameters:
        raise UnknownLayout(f"{module.BatchedCalls!r} takes no pickle_cache")
    return [
        observe(
            module.Parallel,
            "__call__",
            before=_begin,
            arguments=_pulled,
            result=_outputs,
            failed=_failed,
        ),
        Patch(module.Parallel, "_dispatch", _watched_dispatch),
        Patch(module.BatchedCalls, "__reduce__", _watched_reduce),
    ]


def _begin(parallel: Any, iterable: Any) -> Call | None:
    if any(sys.modules.setdefault(one.__name__, one) is not one for one in _unpickling):
        return None  # somebody has imported the guard twice: ours cannot be pickled
    call = calls.begin()
    if call is not None:
        attempt(_forget, parallel)  # another call of it, whose results nobody has asked for
        setattr(parallel, CALL, call)  # not by its `__dict__`, which Python makes on demand only
    return call


def _pulled(call: Call, parallel: Any, iterable: Any) -> Arguments | None:
    return ((parallel, probes.wrap_tasks(call, iterable)), {}) if call.asked else None


def _outputs(call: Call, output: Any, parallel: Any, iterable: Any) -> Iterator[Any] | None:
    if getattr(parallel, "return_generator", False):
        return _announcing(output, parallel, call)
    _ended(parallel, call)
    _announce(call)
    return None


def _failed(call: Call, error: BaseException, parallel: Any, iterable: Any) -> None:
    _ended(parallel, call)
    calls.failed(call, error)


def _ended(parallel: Any, call: Call) -> None:
    attempt(_forget, parallel, call)
    attempt(_count, parallel, call)


def _announce(call: Call) -> None:
    attempt(backends.ended, call)
    attempt(call.announce)


def _count(parallel: Any, call: Call) -> None:
    """Count what `parallel`, whose call has ended, has done in it."""
    tasks = getattr(parallel, "n_dispatched_tasks", 0)
    call.count(tasks=tasks, size=call.sent, seconds=time.perf_counter() - call.began)


def weighing(module: ModuleType) -> list[Patch]:
    """Watch where loky pickles a batch, and has its bytes in hand."""
    return [observe(module, "dumps", after=_weigh)]


def _weigh(data: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
    cache = getattr(getattr(obj, "fn", None), "_pickle_cache", None)
    known = None if cache is None else _by_cache.get(id(cache))
    call = None if known is None else known.call()
    if call is not None:
        call.sent += len(data)


def _forget(parallel: Any, call: Call | None = None) -> None:
    """Let `parallel` be as it was before that call of it, or before any."""
    known = getattr(parallel, CALL, None)
    if known is not None and call in (None, known):
        delattr(parallel, CALL)
        if known.direct is not None and parallel._dispatch is known.direct:
            del parallel._dispatch


def _announcing(outputs: Iterator[Any], parallel: Any, call: Call) -> Iterator[Any]:
    try:
        yield from outputs
    except GeneratorExit:
        raise
    except BaseException as error:
        without_this_frame(error)
        attempt(calls.failed, call, error)
        raise
    finally:
        _ended(parallel, call)
    with theirs_only:
        _announce(call)


def _watched_dispatch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _dispatch(self: Any, batch: Any) -> Any:
        call = getattr(self, CALL, None)
        if call is not None:
            batch, always = attempt(_guarded, batch, self, call, instead=(batch, False))
            if always and getattr(self._dispatch, "__func__", None) is _dispatch:
                # Nothing of ours need see its later batches leave.
                self._dispatch = call.direct = types.MethodType(original, self)
                attempt(backends.leave_pool_alone, self._backend)
        try:
            return original(self, batch)
        except BaseException as error:
            without_this_frame(error)
            raise

    return _dispatch


class Known(NamedTuple):
    """A call whose batches are pickled, and how the lightest of them travel.

    Those are single tasks with one function and plain arguments, where nothing of them matters.

    Attributes:
        call: a weak reference to it.
        function: that of its last single task.
        light: the same, where nothing that it takes along may matter.
        rebuild: what makes the batch in the worker.
        before: its arguments before those of joblib's own class of batches.
        last: its last argument, alone.
    """

    call: weakref.ref[Call]
    function: Any = None
    light: Any = _NO_FUNCTION
    rebuild: Any = None
    before: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()


_by_cache: dict[int, Known] = dropped_at_end({})
"""The calls whose batches are pickled, by the id of the cache that their batches share."""


def _watched_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    from pytest_gradguard.runtime.integrations.joblib import worker_batch  # it imports joblib

    _unpickling[:] = [worker, worker_batch]
    WorkerBatch, unpack = worker_batch.WorkerBatch, worker_batch.unpack

    def learn(known: Known, call: Call, items: Any) -> Known:
        """Learn how single tasks with the function of these and plain arguments travel."""
        function = items[0][0]
        if not travelling.light(function) or not probes.questions(call).lasting:
            return Known(known.call, function)
        asked = probes.ship(call, items)
        if asked:
            return Known(known.call, function, function, unpack, (asked,), (call.token,))
        return Known(known.call, function, function, WorkerBatch, (), (call.token,))

    def watched(self: Any, known: Known, reduction: Any, single: bool) -> Any:
        items = self.items
        rebuild, arguments = reduction
        call = known.call()
        if (
            call is None
            or rebuild is not type(self)
            or arguments[-1] is not call.cache
            or not _are_tasks(items)
        ):
            return reduction  # not as joblib builds it
        if single and known.function is not items[0][0]:
            _by_cache[id(call.cache)] = learn(known, call, items)
        asked = probes.ship(call, items) if isinstance(items[0], tuple) else call.asked
        return bracketed(Shipment(call, items), unpack, (asked, *arguments[:-1], call.token))

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        reduction = original(self)
        try:
            known = _by_cache.get(id(self._pickle_cache))
            if known is None:
                return reduction
            item: Any = self.items[0] if len(self.items) == 1 else None
            single = type(item) is tuple and len(item) == 3
            if single:
                function, args, kwargs = item
                if function is known.light and not kwargs:
                    for argument in args:  # written out, for it runs in every small batch
                        if type(argument) not in PLAIN:
                            break
                    else:
                        return known.rebuild, known.before + reduction[1][:-1] + known.last
            return watched(self, known, reduction, single) or reduction
        except Exception as error:
            fault(error)
            return reduction

    return __reduce__


def _guarded(batch: Any, parallel: Any, call: Call) -> tuple[Any, bool]:
    """What stands in for a batch that leaves; and whether each later one may leave as it is."""
    backend = backends.of(parallel._backend)
    if backend is None:
        return batch, True
    if not _are_tasks(batch.items):
        return batch, False
    call.kind = backend.workers
    pickles = call.kind.carries == "pickle"
    if pickles:
        _know(batch, call)  # as it shares its cache with them, these are known by that
    if backend.batch is not None:
        return backend.batch(batch, call, parallel._backend), False
    if pickles:
        return batch, True
    asked = probes.ship(call, batch.items) if isinstance(batch.items[0], tuple) else None
    if asked:
        return ThreadBatch(batch, call, asked), False
    return batch, probes.questions(call).lasting


def _are_tasks(items: Any) -> bool:
    """Whether joblib can call them; the program may have forgotten `delayed`.

    Items of another class than tuples are another library's tasks.
    """
    return not any(isinstance(item, tuple) and len(item) != 3 for item in items)


def _know(batch: Any, call: Call) -> None:
    """Have the batches of `call`, of which this is one, be known as they are pickled."""
    cache = batch._pickle_cache
    if call.cache is not cache:
        key = id(cache)  # as long as the call lives, so does its cache
        call.cache = cache
        _by_cache[key] = Known(weakref.ref(call, freed(_by_cache.pop, key, None)))


def pickling(module: ModuleType) -> list[Patch]:
    """Watch what the pools of joblib pickle by."""
    return [Patch(module.CustomizablePickler, "dump", watched_dump, inherited=True)]
