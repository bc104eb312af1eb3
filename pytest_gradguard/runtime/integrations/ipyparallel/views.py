"""Views of `ipyparallel`: a function and its arguments are pickled one by one for an engine.

`run` is sent in the function's place, which becomes its argument: so an engine gives it the names
of its own, as it does with each function. Engines that others have started are left alone, for the
guard may not be installed there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.ipyparallel import WORKERS
from pytest_gradguard.runtime.kernel import packages, probes, transfer
from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, futures, remote
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    theirs_only,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patch

Original = Callable[..., Any]


class _Mapping(threading.local):
    call: Call | None = None
    item: Any = None


_mapping = _Mapping()


# -- in the parent ---------------------------------------------------------------------------------


def views(module: ModuleType) -> list[Patch]:
    """Watch what views send to engines."""
    kinds = (module.DirectView, module.BroadcastView, module.LoadBalancedView)
    return [
        Patch(kind, "_really_apply", _applies) for kind in kinds if "_really_apply" in vars(kind)
    ]


def maps(module: ModuleType) -> list[Patch]:
    """Watch what is mapped over sequences: it is pickled before it is sent."""
    return [Patch(module.ParallelFunction, "__call__", _maps)]


def clients(module: ModuleType) -> list[Patch]:
    """Watch what is sent: its results may come before the call that waits for them returns."""
    return [observe(module.Client, "send_apply_request", after=_sent)]


def _sent(*args: Any, **kwargs: Any) -> None:
    shipment = transfer.active.transfer
    if isinstance(shipment, TaskShipment):
        shipment.ship_parameters()


def _applies(original: Original) -> Original:
    passing = packages.around(original)

    @functools.wraps(original)
    def _really_apply(
        self: Any, f: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        item = (f, tuple(args or ()), dict(kwargs or {}))
        mapping = _mapping.call
        call = mapping
        if call is None and _is_watched(f, self):
            call = attempt(calling.begin, WORKERS, passing, single=self)
        if call is None:
            return original(self, f, args, kwargs, *more, **options)
        asked = attempt(probes.ship, call, [item if mapping is None else _mapping.item], instead={})
        given = [(call.token, asked), f, *item[1]]
        if mapping is not None:
            return original(self, Running(f), given, kwargs, *more, **options)
        return _sending(call, item, original, self, Running(f), given, kwargs, *more, **options)

    return _really_apply


def _maps(original: Original) -> Original:
    passing = packages.around(original)

    @functools.wraps(original)
    def __call__(self: Any, *sequences: Any, **kwargs: Any) -> Any:
        watched = _mapping.call is None and _is_watched(self.func, self.view)
        call = attempt(calling.begin, WORKERS, passing) if watched else None
        if call is None:
            return original(self, *sequences, **kwargs)
        _mapping.call, _mapping.item = call, (self.func, sequences, {})
        try:
            return _sending(call, _mapping.item, original, self, *sequences, **kwargs)
        finally:
            _mapping.call = _mapping.item = None

    return __call__


def _is_watched(function: Any, view: Any) -> bool:
    """Whether a function is none of the library's, and a view is of engines started here."""
    module = str(plain_attribute(function, "__module__") or "")
    cluster = getattr(view.client, "cluster", None)
    kind = getattr(cluster, "engine_launcher_class", None)
    return (
        callable(function)
        and module.partition(".")[0] != "ipyparallel"
        and str(plain_attribute(kind, "__name__")).startswith("Local")
    )


def _sending(call: Call, item: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """Call `original`, which pickles the task `item` of `call`."""
    call.count(tasks=1)
    try:
        with Beside(transfer.during, TaskShipment(call, [item])):
            outcome = original(*args, **kwargs)
    except BaseException as error:
        without_this_frame(error)
        raise
    if hasattr(outcome, "msg_ids"):  # it is asked for later
        futures.belongs_to(outcome, call)
    with theirs_only:
        attempt(call.announce)
    return outcome


# -- in the engine ---------------------------------------------------------------------------------


class Running:
    """In place of a function: runs it under watch in an engine. It has the function's name."""

    def __init__(self, function: Any) -> None:
        self.__name__ = str(plain_attribute(function, "__name__") or type(function).__name__)

    def __call__(
        self, head: tuple[int, Mapping[str, Any]], function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        token, asked = head
        task: Any = (function, args, kwargs)
        if plain_attribute(function, "__module__") == "ipyparallel.client.remotefunction":
            item: Any = (args[0], args[1:], {})  # of its `_map`
        else:
            item = task
        return remote.run(remote.bound(task), [item], False, token, asked)
