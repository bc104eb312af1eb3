"""Ray's tasks and actors, and `ray.put`.

What a call gives to a worker is pickled in the calling thread, before the call returns. Functions
and classes are pickled once, as they are first used: with them goes what watches the results in the
workers, where all of them are on this machine. A result names the Ray task that it comes from.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, MappingProxyType, MethodType, ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.ray import (
    SERIALIZATION,
    WORKER,
    WORKERS,
    module_globals,
    seeds,
)
from pytest_gradguard.runtime.kernel import (
    calls,
    collector,
    packages,
    probes,
    quoting,
    running,
    task_seeds,
    transfer,
    watching,
    worker,
)
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, remote, telling
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    fault,
    theirs_only,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import caller, observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.kept import backwards
from pytest_gradguard.runtime.pitfalls.random import gg305 as generators

_kept: deque[Call] = deque(maxlen=4_096)
"""The last calls: their results may be asked for at any time."""
watching.at_end(_kept.clear)
_sources: deque[Call] = deque(maxlen=64)
"""The last that made an actor, or put an object, with what requires grad in it."""
watching.at_end(_sources.clear)
_by_name: dict[str, Call] = {}
"""The same, by the names that Ray gives to the actor, or the object."""
watching.at_end(_by_name.clear)
_families: dict[str, Any] = {}
"""By the names of actors that were made with random generators: the family of their calls."""
watching.at_end(_families.clear)
_with_gpu: set[str] = set()
"""The names of the actors that were given a GPU."""
watching.at_end(_with_gpu.clear)


class _Submitting(threading.local):
    call: Call | None = None


_submitting = _Submitting()


# -- in the parent ---------------------------------------------------------------------------------


def tasks(module: ModuleType) -> list[Patch]:
    """Watch remote functions."""
    return [
        Patch(module.RemoteFunction, "_remote", functools.partial(_submits, _function_of)),
        Patch(module, "pickle_dumps", _exports),
    ]


def actors(module: ModuleType) -> list[Patch]:
    """Watch actors."""
    return [
        Patch(
            module.ActorClass, "_remote", functools.partial(_submits, _initializer_of, lasts=True)
        ),
        Patch(module.ActorMethod, "_remote", functools.partial(_submits, _Method)),
    ]


def classes(module: ModuleType) -> list[Patch]:
    """Watch the export of classes."""
    return [Patch(module, "pickle_dumps", _exports)]


def objects(module: ModuleType) -> list[Patch]:
    """Watch `ray.put`."""
    return [Patch(module.Worker, "put_object", _puts)]


def results(module: ModuleType) -> list[Patch]:
    """Watch what `ray.get` reads."""
    return [observe(module.SerializationContext, "deserialize_objects", after=_arrived)]


def _function_of(remote_function: Any) -> Any:
    return remote_function._function


def _initializer_of(actor_class: Any) -> Any:
    modified = actor_class.__ray_metadata__.modified_class
    return MethodType(modified.__init__, modified)  # the arguments begin after `self`


class _Method:
    """Stands for the method of an actor: its class is not known here."""

    def __init__(self, method: Any) -> None:
        self.__qualname__ = str(method._method_name)

    def __call__(self) -> None:
        """Stand for a function."""


class _Put:
    """Stands for `ray.put`, whose own lines are of no interest."""

    __qualname__ = quoting.RAY_PUT

    def __call__(self) -> None:
        """Stand for a function."""


def _submits(
    function_of: Callable[[Any], Any], original: Callable[..., Any], *, lasts: bool = False
) -> Any:
    passing = packages.around(original)
    number = seeds.of_actor if lasts else seeds.named

    @functools.wraps(original)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        call = attempt(calling.begin, WORKERS, passing, single=self)
        try:
            if call is None:
                return original(self, args, kwargs, *more, **options)
            item = (attempt(function_of, self), tuple(args or ()), dict(kwargs or {}))
            call.sources = _sources
            if _families:
                call.shared = _families.get(attempt(actor_of, self), call.shared)
            if attempt(_has_gpu, self, options):
                call.dropped |= {"GG201"}
            attempt(_use, call, self, item)
            options = attempt(number, call, options, instead=options)
            with Beside(_watched, call, item):
                outcome = original(self, args, kwargs, *more, **options)
        except BaseException as error:
            without_this_frame(error)
            raise
        if lasts:
            attempt(_made, call, outcome)
        attempt(_remember, call, outcome)
        return outcome

    return _remote


def _keep(call: Call, name: Callable[[], str]) -> None:
    """Keep a call that made an actor, or put an object, for those that use it."""
    if len(_sources) == _sources.maxlen:
        gone = _sources[0]
        for known in [name for name, one in _by_name.items() if one is gone]:
            del _by_name[known]
    _sources.append(call)
    _by_name[name()] = call


def _made(call: Call, actor: Any) -> None:
    """Remember the call that made an actor."""
    if generators.ships(call):
        if len(_families) >= _ACTORS:
            del _families[next(iter(_families))]
        _families[actor._actor_id.hex()] = call.family
    if call.shipped:
        _keep(call, actor._actor_id.hex)
    if "GG201" in call.dropped:
        _with_gpu.add(actor._actor_id.hex())


_ACTORS = 1_000
"""How many actors that were made with generators are known."""


def _use(call: Call, owner: Any, item: Any) -> None:
    """Take what an actor was made with, and what was put, for shipped to a call that uses it."""
    if not _by_name:
        return
    _, args, kwargs = item
    names = [one.hex() for one in (*args, *kwargs.values()) if is_reference(one)]
    actor = actor_of(owner)
    if actor is not None:
        names.append(actor)
    for before in filter(None, map(_by_name.get, names)):
        call.use(before)


def is_reference(item: Any) -> bool:
    return isinstance(item, sys.modules["ray"].ObjectRef)


def actor_of(method: Any) -> str | None:
    """The name of the actor whose method this is; None of what is no method."""
    actor = getattr(method, "_actor", None)
    if actor is None:
        reference = getattr(method, "_actor_ref", None)  # of Ray's older releases
        actor = None if reference is None else reference()
    return None if actor is None else str(actor._actor_id.hex())


def _has_gpu(owner: Any, options: dict[str, Any]) -> bool:
    """Whether a GPU was asked for, so that the tasks are meant to use it."""
    given = options.get("num_gpus")
    if given is None:
        given = (getattr(owner, "_default_options", None) or {}).get("num_gpus")
    if given is None:
        return actor_of(owner) in _with_gpu
    return bool(given)


@contextmanager
def _watched(call: Call, item: Any) -> Iterator[None]:
    """A block in which Ray pickles what `item` takes to a worker."""
    before, _submitting.call = _submitting.call, call
    try:
        with transfer.during(TaskShipment(call, [item])):
            yield
    finally:
        _submitting.call = before
    with theirs_only:
        collector.announce(call.collector, call.evidence.values())


def _remember(call: Call, outcome: Any) -> None:
    """Let the results of `call` find it."""
    try:
        _kept.append(call)
        for reference in outcome if isinstance(outcome, list) else [outcome]:
            reference = getattr(reference, "_generator_ref", reference)  # of what a task yields
            task = getattr(reference, "task_id", None)
            if task is not None:
                calls.known_as(call, task().hex())
    except Exception as error:
        fault(error)


def _puts(original: Callable[..., Any]) -> Callable[..., Any]:
    passing = packages.around(original)

    @functools.wraps(original)
    def put_object(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        busy = _submitting.call is not None
        with task_seeds.unnumbered():
            call = None if busy else attempt(calling.begin, WORKERS, passing)
        try:
            if call is None:
                return original(self, value, *args, **kwargs)
            with Beside(_watched, call, (_Put(), (value,), {})):
                reference = original(self, value, *args, **kwargs)
            if call.shipped:
                attempt(_keep, call, reference.hex)
            return reference
        except BaseException as error:
            without_this_frame(error)
            raise

    return put_object


def _arrived(result: Any, worker: Any, objects: Any, references: Any, *args: Any) -> None:
    """Announce what results brought with them, in the thread that asks for them."""
    attempt(telling.hear)
    for reference in references:
        call = None if reference is None else calls.by_token(reference.task_id().hex())
        if call is not None and call.evidence:
            collector.announce(call.collector, call.evidence.values())


# -- functions and classes on their way ------------------------------------------------------------


def _exports(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def pickle_dumps(item: Any, *args: Any, **kwargs: Any) -> Any:
        call = _submitting.call
        watched = call is not None and attempt(is_on_this_machine, instead=False)
        return original(
            attempt(_Exported, item, call, instead=item) if watched else item, *args, **kwargs
        )

    return pickle_dumps


def is_on_this_machine() -> bool:
    """Whether all workers run on this machine, where the guard can be imported."""
    return len(sys.modules["ray"].nodes()) == 1


class _Exported:
    """A function or class of the program's; unpickled, it is that one."""

    def __init__(self, item: Any, call: Call) -> None:
        self._item = item
        self._asked = attempt(module_globals.ask, call, item, instead={})
        self._seeded = task_seeds.numbers_of(call) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive, (self._item, self._asked, self._seeded)


# -- in the worker ---------------------------------------------------------------------------------

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
        Patch(context, "serialize", _sends),
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


def _sends(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def serialize(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not in_libraries and attempt(_is_result, sys._getframe().f_back):
            value = attempt(_noted, value, instead=value)
        return original(self, value, *args, **kwargs)

    return serialize


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
