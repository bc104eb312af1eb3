"""Ray's workers: the tasks that run there, and what goes back with their results."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from types import FrameType, MappingProxyType, MethodType
from typing import Any

from pytest_gradguard.runtime.integrations.ray import SERIALIZATION, WORKER, module_globals, seeds
from pytest_gradguard.runtime.kernel import probes, running, worker
from pytest_gradguard.runtime.kernel.dispatch import remote
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import Arguments, caller, observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.kept import backwards
from pytest_gradguard.runtime.pitfalls.random import gg305 as generators

_functions: dict[str, Any] = {}


def arrive(
    exported: Any, asked: Mapping[str, Any] = MappingProxyType({}), seeded: bool = False
) -> Any:
    """Take a function or class in a worker, and what was asked of it; called by unpickling."""
    try:
        running: Any = sys.modules[WORKER]
        if running.global_worker.mode == running.WORKER_MODE:
            _functions[exported.__qualname__] = exported
            module_globals.arrive(exported, asked)
            worker.watch_nested_calls()
            _sending.apply()
            if seeded:
                return seeds.seeded(exported)
    except Exception as error:
        fault(error)
    return exported


def _make() -> list[Patch]:
    context: Any = sys.modules[SERIALIZATION].SerializationContext
    return [
        observe(context, "serialize", arguments=_sends),
        observe(context, "deserialize_objects", after=_received),
    ]


_sending = LatePatches(_make)


class _Running(threading.local):
    """The task that this thread runs: its arguments, and what the probes began to look at."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.begun: Any = None


_running = _Running()


in_libraries: list[Any] = []
"""The program's functions that Ray's libraries run in this process, in threads of their own: it is
these that are looked at, and not the methods of the actor meanwhile."""


def _received(arguments: Any, *args: Any, **kwargs: Any) -> None:
    if not in_libraries and not _is_asked_for(caller()):
        _begin(arguments)


def _is_asked_for(frame: FrameType | None) -> bool:
    """Whether a task asks for objects; else they are the arguments of a task."""
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == "get_objects":
            return True
        frame = frame.f_back
    return False


_NEAR = 4
"""How many frames there may be between."""


def _begin(arguments: list[Any]) -> None:
    """Look at a task from now on, which has just got its arguments."""
    running.leave(_running.items)
    backwards.take(_running.items)
    context = sys.modules["ray"].get_runtime_context()
    function = _function(context.get_task_function_name())
    _running.items = _Items([(function, *_recovered(arguments))])
    _running.items.beside = [("0|self", _actor())]
    running.enter(_running.items)
    _keep_generators(context)
    _running.begun = probes.begin(module_globals.asked_for(function), process=True)


_own: list[Any] = []
"""The generators that the actor of this process was made with, with their numbers."""


def _keep_generators(context: Any) -> None:
    """Have those that an actor was made with looked at in each of its methods."""
    if context.get_actor_id() is None:
        return
    if _actor() is None:
        _own[:] = generators.take_arrived()
    elif _own and not _in_a_group():
        generators.arrived(_own)


def _in_a_group() -> bool:
    """Whether this process is a rank of a group: these often have to draw the same numbers."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_initialized())


def _recovered(arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a task: they travel in one list, each after its name or a mark."""
    names, values = arguments[::2], arguments[1::2]
    if len(names) != len(values) or not all(isinstance(name, (str, bytes)) for name in names):
        return tuple(arguments), {}
    pairs = list(zip(names, values, strict=True))
    given = tuple(value for name, value in pairs if isinstance(name, bytes))
    return given, {name: value for name, value in pairs if isinstance(name, str)}


def _actor() -> Any:
    """The object of the actor that lives in this process, or None."""
    known = sys.modules[WORKER].global_worker
    return known.actors.get(known.actor_id)


class _Items(list[Any]):
    """The tasks of this process.

    Attributes:
        beside: where a search begins for what they use and are not given.
    """

    beside: list[tuple[str, Any]]


def _sends(context: Any, value: Any, *args: Any, **kwargs: Any) -> Arguments | None:
    if in_libraries or not _is_result(sys._getframe(1).f_back):
        return None
    return (context, _noted(value), *args), kwargs


_ARGUMENTS = {"ray.remote_function", "ray.actor"}


def _is_result(frame: FrameType | None) -> bool:
    """Whether a task's result is pickled; else it is what the task gives to another one.

    Ray's own code has no frames: below the result of an asynchronous actor there is none at all.
    """
    if frame is None:
        return True
    code = frame.f_code.co_name
    return frame.f_globals.get("__name__") not in _ARGUMENTS and code != "put_object"


def _noted(value: Any) -> Any:
    """The result of a task, with what was noticed in this worker."""
    ray: Any = sys.modules["ray"]
    context = ray.get_runtime_context()
    token = context.get_task_id()
    if token is None or isinstance(value, (bytes, ray.ObjectRef, ray.actor.ActorHandle)):
        return value
    function = _function(context.get_task_function_name())
    items: Any = _running.items or [(function, (), {})]
    begun, _running.begun = _running.begun, None
    if begun is None:  # a task without arguments
        begun = probes.begin(module_globals.asked_for(function), process=True)
    if isinstance(value, ray.exceptions.RayTaskError):
        cause = value.cause
        worker.send_with(cause, token, probes.end(begun, items, None, cause, process=True))
        return value
    notes = probes.end(begun, items, [value], process=True)
    found = worker.take_findings()
    if not (notes or found) and worker.nothing_in([value]):
        return value
    return remote.OneResult(token, [value], items, found, notes)


def _function(name: str | None) -> Any:
    """The function that Ray calls `name`, such as ``module.Class.method``."""
    parts = (name or "").split(".")
    for index in range(len(parts)):
        found = _functions.get(".".join(parts[index:]))
        if found is not None:
            return found
        owner = _functions.get(".".join(parts[index:-1]))
        method = None if owner is None else getattr(owner, parts[-1], None)
        if method is not None:
            return method if isinstance(method, MethodType) else MethodType(method, owner)
    return next(reversed(_functions.values()))
