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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType, ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.ray import (
    PASSED,
    WORKERS,
    module_globals,
    seeds,
    working,
)
from pytest_gradguard.runtime.kernel import (
    calls,
    quoting,
    task_seeds,
    transfer,
)
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling, reporting
from pytest_gradguard.runtime.kernel.dispatch.shipped import TaskShipment
from pytest_gradguard.runtime.kernel.faults import (
    Beside,
    attempt,
    fault,
    theirs_only,
    without_this_frame,
)
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.pitfalls.random import gg305 as generators


class _State(GuardState):
    """The tasks, actors and objects that the program has submitted to Ray.

    Attributes:
        kept: the last calls: their results may be asked for at any time.
        sources: the last that made an actor, or put an object, with what requires grad in it.
        by_name: these, by the names that Ray gives to the actor, or the object.
        families: by the names of actors that were made with random generators: the family of
            their calls.
        with_gpu: the names of the actors that were given a GPU.
    """

    def __init__(self) -> None:
        self.kept: deque[Call] = deque(maxlen=4_096)
        self.sources: deque[Call] = deque(maxlen=64)
        self.by_name: dict[str, Call] = {}
        self.families: dict[str, Any] = {}
        self.with_gpu: set[str] = set()


_state = dropped_at_end(_State())


class _Submitting(threading.local):
    call: Call | None = None


_submitting = _Submitting()


# -- in the parent ---------------------------------------------------------------------------------


def tasks(module: ModuleType) -> list[Patch]:
    """Watch remote functions."""
    return [
        Patch(module.RemoteFunction, "_remote", functools.partial(_submits, _function_of)),
        observe(module, "pickle_dumps", arguments=_exports),
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
    return [observe(module, "pickle_dumps", arguments=_exports)]


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
    number = seeds.of_actor if lasts else seeds.named

    @functools.wraps(original)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        call = attempt(calling.begin, WORKERS, PASSED, single=self)
        try:
            if call is None:
                return original(self, args, kwargs, *more, **options)
            item = (attempt(function_of, self), tuple(args or ()), dict(kwargs or {}))
            call.sources = _state.sources
            if _state.families:
                call.shared = _state.families.get(attempt(actor_of, self), call.shared)
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
    if len(_state.sources) == _state.sources.maxlen:
        gone = _state.sources[0]
        for known in [name for name, one in _state.by_name.items() if one is gone]:
            del _state.by_name[known]
    _state.sources.append(call)
    _state.by_name[name()] = call


def _made(call: Call, actor: Any) -> None:
    """Remember the call that made an actor."""
    if generators.ships(call):
        if len(_state.families) >= _ACTORS:
            del _state.families[next(iter(_state.families))]
        _state.families[actor._actor_id.hex()] = call.family
    if call.shipped:
        _keep(call, actor._actor_id.hex)
    if "GG201" in call.dropped:
        _state.with_gpu.add(actor._actor_id.hex())


_ACTORS = 1_000
"""How many actors that were made with generators are known."""


def _use(call: Call, owner: Any, item: Any) -> None:
    """Take what an actor was made with, and what was put, for shipped to a call that uses it."""
    if not _state.by_name:
        return
    _, args, kwargs = item
    names = [one.hex() for one in (*args, *kwargs.values()) if is_reference(one)]
    actor = actor_of(owner)
    if actor is not None:
        names.append(actor)
    for before in filter(None, map(_state.by_name.get, names)):
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
        return actor_of(owner) in _state.with_gpu
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
        call.announce()


def _remember(call: Call, outcome: Any) -> None:
    """Let the results of `call` find it."""
    try:
        _state.kept.append(call)
        for reference in outcome if isinstance(outcome, list) else [outcome]:
            reference = getattr(reference, "_generator_ref", reference)  # of what a task yields
            task = getattr(reference, "task_id", None)
            if task is not None:
                calls.known_as(call, task().hex())
    except Exception as error:
        fault(error)


def _puts(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def put_object(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        busy = _submitting.call is not None
        with task_seeds.unnumbered():
            call = None if busy else attempt(calling.begin, WORKERS, PASSED)
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
    attempt(reporting.receive)
    for reference in references:
        call = None if reference is None else calls.by_token(reference.task_id().hex())
        if call is not None and call.evidence:
            call.announce()


# -- functions and classes on their way ------------------------------------------------------------


def _exports(item: Any, *args: Any, **kwargs: Any) -> Arguments | None:
    call = _submitting.call
    if call is None or not is_on_this_machine():
        return None
    return (_Exported(item, call), *args), kwargs


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
        return working.arrive, (self._item, self._asked, self._seeded)
