"""One task on its way to a worker process, or to a thread."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.kernel import inline, probes, running, watching
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import remote
from pytest_gradguard.runtime.kernel.dispatch.remote import Split
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.faults import attempt, carried, fault, without_this_frame
from pytest_gradguard.runtime.kernel.shipment import Shipment
from pytest_gradguard.runtime.kernel.transfer import bracketed

if TYPE_CHECKING:
    from pytest_gradguard.runtime.kernel.framework import Framework


def guarded(
    call: Call, function: Any, args: Any, kwargs: Any, split: Split | None = None
) -> Shipped | None:
    """A function without arguments that calls `function(*args, **kwargs)` under watch.

    None if there is nothing to watch.

    Args:
        call: the call that the task belongs to.
        function, args, kwargs: the task.
        split: finds the program's tasks in it, if it is a chunk of them (see `remote`).
    """
    if type(function) in (ShippedTask, ThreadTask) or not _is_task(function, args, kwargs):
        return None
    try:
        if call.kind.carries == "pickle":
            if sys.modules.setdefault(remote.__name__, remote) is not remote:
                return None  # the guard was imported twice: ours cannot be pickled
            inline.note_shipped(call.kind)
            return ShippedTask(call, function, args, kwargs, split)
        items = remote.items_of(function, args, kwargs, split)[0]
        call.count(tasks=len(items))
        asked = probes.ship(call, items)
        return ThreadTask(call, asked, function, args, kwargs, split) if asked else None
    except Exception as error:
        fault(error)
        return None


def _is_task(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether this is a callable task; if not, the error is the pool's to raise."""
    return (
        callable(function)
        and issubclass(type(args), (tuple, list))
        and issubclass(type(kwargs), dict)
        and all(type(key) is str for key in dict.keys(kwargs))
    )


class ShippedTask:
    """A task for a worker process; pickled, it becomes a `remote.WorkerTask`."""

    def __init__(
        self, call: Call, function: Any, args: Any, kwargs: Any, split: Split | None = None
    ) -> None:
        self.call = call
        self._task = (function, args, kwargs)
        self._split = split

    def __call__(self) -> Any:
        function, args, kwargs = self._task
        return function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        function, args, kwargs = self._task
        plain = functools.partial(function, **kwargs) if kwargs else function
        unguarded = (functools.partial, (plain, *args))
        try:
            if not watching.is_on():  # it waited in a queue until the guard had ended
                return unguarded
            items, many = remote.items_of(*self._task, self._split)
            self.call.count(tasks=len(items))
            asked = probes.ship(self.call, items)
            arguments: tuple[Any, ...] = (self.call.token, asked, *self._task)
            if many:
                arguments = (*arguments, self._split)
            return bracketed(TaskShipment(self.call, items), remote.WorkerTask, arguments)
        except Exception as error:
            fault(error)
            return unguarded


class TaskShipment(Shipment):
    """Marks tensors whose memory torch's own reductions share."""

    def _sample(self, item: Any, history: Any, framework: Framework) -> Object:
        sample = super()._sample(item, history, framework)
        if self.call.kind.shares_memory and framework.shares_memory(item):
            sample.description["shared_memory"] = True
        return sample


class ThreadTask:
    """A task that is watched in the thread where it runs."""

    def __init__(
        self,
        call: Call,
        asked: Mapping[str, Any],
        function: Any,
        args: Any,
        kwargs: Any,
        split: Split | None,
    ) -> None:
        self.call = call
        self._asked = asked
        self._task = (function, args, kwargs)
        self._split = split

    def __call__(self) -> Any:
        unseen = (remote.bound(self._task), (), False)
        task, items, many = attempt(
            remote.runnable, self._task, self._split, self._asked, instead=unseen
        )
        gave = running.same if many else running.alone
        try:
            return carried(task, running.in_thread, self.call, items, self._asked, gave)
        except BaseException as error:
            without_this_frame(error)
            raise


Shipped = ShippedTask | ThreadTask
