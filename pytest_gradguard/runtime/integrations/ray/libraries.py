"""Functions that Ray's libraries run for the program: `ray.train`, `ray.tune`, `ray.data`.

They reach their workers by way of other actors, and what they return does not come back by one call
of the program's. So a worker tells what it notes by a pipe of the program's process.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.ray import PASSED, WORKERS, tasks, working
from pytest_gradguard.runtime.kernel import probes, running, worker
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.checks import TORCH
from pytest_gradguard.runtime.kernel.dispatch import calling, reporting
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.pipes import Address, post
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.transfer import bracketed
from pytest_gradguard.runtime.pitfalls.ddp import C10D

Item = tuple[Any, Any, Any]
_calls: deque[Call] = dropped_at_end(deque(maxlen=256))
"""The last calls: their workers may tell of them at any time."""
_FAMILIES = "pytest_gradguard.runtime.pitfalls"
_STEPS = f"{_FAMILIES}.kept.worker_gradients"  # it needs torch
_DIVERGENCE = f"{_FAMILIES}.ddp.divergence"
_MAPS = ("map", "map_batches", "flat_map", "filter")

# -- in the parent ---------------------------------------------------------------------------------


def trainers(module: ModuleType) -> list[Patch]:
    """Watch the loops of the ranks of `ray.train`."""
    return [observe(module.DataParallelTrainer, "_get_train_func", result=_trains)]


def _trains(function: Any, trainer: Any) -> Any:
    config = trainer.train_loop_config
    return _watched(
        function, (trainer.train_loop_per_worker, () if config is None else (config,), {})
    )


def trainables(module: ModuleType) -> list[Patch]:
    """Watch the functions of the trials of `ray.tune`."""
    return [observe(module, "wrap_function", arguments=_first_argument)]


def datasets(module: ModuleType) -> list[Patch]:
    """Watch the functions that `ray.data` maps over data sets."""
    return [observe(module.Dataset, name, arguments=_second_argument) for name in _MAPS]


def _first_argument(function: Any, *args: Any, **kwargs: Any) -> Arguments:
    return (_of_function(function), *args), kwargs


def _second_argument(data: Any, /, *args: Any, **kwargs: Any) -> Arguments | None:
    return ((data, _of_function(args[0]), *args[1:]), kwargs) if args else None


def _of_function(function: Any) -> Any:
    """A function that does what `function` does, under watch."""
    if type(function) is not types.FunctionType or function.__code__.co_flags & _SUSPENDS:
        return function
    return _watched(function, (function, (), {}))


_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _watched(function: Any, item: Item) -> Any:
    call = calling.begin(WORKERS, PASSED) if tasks.is_on_this_machine() else None
    address = None if call is None else reporting.address(call)
    if call is None or address is None:
        return function
    _calls.append(call)
    if TORCH in sys.modules and "GG106" not in call.dropped:
        import_module(_STEPS).listen()
    shipped = _Shipped(function, call, item, address)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return shipped(*args, **kwargs)

    run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del run.__wrapped__  # it is pickled in `shipped`
    return run


class _Shipped:
    """A function of the program's; unpickled, it becomes a `Watched`."""

    def __init__(self, function: Any, call: Call, item: Item, address: Address) -> None:
        self._function = function
        self._call = call
        self._item = item
        self._address = address

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        call, items = self._call, [self._item]
        asked = attempt(probes.ship, call, items, instead={})
        arguments = (self._function, self._item, call.token, asked, self._address)
        return bracketed(TaskShipment(call, items), Watched, arguments)


# -- in the worker ---------------------------------------------------------------------------------


class Watched:
    """A function in a worker, which tells what is noted there; made by unpickling."""

    def __init__(
        self, function: Any, item: Item, token: int, asked: Mapping[str, Any], address: Address
    ) -> None:
        self._about = (function, item, token, asked, address)

    def __reduce__(self) -> tuple[Any, ...]:
        return Watched, self._about  # an actor may pass it on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, (own, given, named), token, asked, address = self._about
        items = [(own, (*given, *args), {**named, **kwargs})]

        def tell(notes: probes.Notes) -> None:
            divergence: Any = sys.modules.get(_DIVERGENCE)
            if divergence is not None:
                divergence.leaving()
            post(address, reporting.message_of(token, notes, _of_this_rank(worker.take_findings())))

        def failed(error: BaseException, notes: probes.Notes) -> None:
            attempt(tell, notes)

        working.in_libraries.append(self)
        try:
            result, notes = running.in_process(
                functools.partial(function, *args, **kwargs), items, asked, failed
            )
        except BaseException as error:
            without_this_frame(error)
            raise
        finally:
            working.in_libraries.remove(self)
        attempt(tell, notes)
        return result


def _of_this_rank(found: list[Any]) -> list[Any]:
    distributed: Any = sys.modules.get(C10D)
    if distributed is None or not distributed.is_initialized():
        return found
    ranks = {"ranks": [distributed.get_rank()]}
    return [replace(one, details={**one.details, **ranks}) for one in found]
