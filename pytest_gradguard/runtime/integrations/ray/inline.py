"""Ray's tasks and actors in the calling process, at once.

References are Ray's own, so that waiting and pools work as they do elsewhere: Ray's store holds a
placeholder for each result, and reading that in this process gives the result. The process of an
actor starts, and stays idle.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.ray import PASSED, WORKERS, seeds
from pytest_gradguard.runtime.integrations.ray.tasks import actor_of, is_reference
from pytest_gradguard.runtime.kernel import inline, task_seeds
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.patching import Patch

Original = Callable[..., Any]
_LIBRARIES = tuple(f"ray.{name}." for name in ("data", "rllib", "serve", "train", "tune"))
"""What these hand out is their own affair."""
_MANY = ("streaming", "dynamic")


class _Placeholder:
    """Stands for `value` in Ray's store, while it may be asked for."""

    def __init__(self, value: Any) -> None:
        self.value = inline.state.isolation.pickled(value)
        _known[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (os.getpid(), id(self))


def _found(process: int, number: int) -> Any:
    """What a placeholder stands for; called by unpickling."""
    if process != os.getpid():
        return None  # in a process that has nothing to do
    return inline.state.isolation.pickled(_known[number].value)


_known: weakref.WeakValueDictionary[int, _Placeholder] = weakref.WeakValueDictionary()
_held: dict[bytes, _Placeholder] = {}
"""By the names of references."""
_actors: dict[str, _Actor] = {}
"""By their names."""


class _Actor:
    """An actor that lives here, or why it does not.

    Attributes:
        instance: the object.
        failure: what its constructor has raised.
        own: what its process would have of its own.
    """

    def __init__(self) -> None:
        self.instance: Any = None
        self.failure: Exception | None = None
        self.own = inline.state.isolation.process()

    def make(self, kind: type, args: Any, kwargs: Any) -> None:
        """Make the object."""
        self.instance = kind(*args, **kwargs)


def tasks(module: ModuleType) -> list[Patch]:
    """The patches of `ray.remote_function`."""
    return [Patch(module.RemoteFunction, "_remote", _inline_task)]


def actors(module: ModuleType) -> list[Patch]:
    """The patches of `ray.actor`."""
    return [
        Patch(module.ActorClass, "_remote", _inline_actor),
        Patch(module.ActorMethod, "_remote", _inline_method),
    ]


def objects(module: ModuleType) -> list[Patch]:
    """The patches of `ray._private.worker`."""
    return [Patch(module.Worker, "put_object", _inline_put)]


def _inline_task(original: Original) -> Original:
    @functools.wraps(original)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        if _is_left("a task of Ray"):
            return original(self, *_for_workers(args, kwargs), *more, **options)
        call = calling.begin(WORKERS, PASSED, single=self)
        returns = options.get("num_returns")
        if returns is None and self._is_generator:
            returns = _MANY[0]
        run = functools.partial(inline.run, WORKERS, call, self._function)
        return _results(run, self._function_name, args, kwargs, returns)

    return _remote


def _inline_actor(original: Original) -> Original:
    @functools.wraps(original)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if options.get("get_if_exists"):  # the original comes here again for one that does not
            return original(self, args, kwargs, **options)
        about = self.__ray_metadata__
        kind = about.modified_class
        if _is_asynchronous(kind):
            inline.refuse("an asynchronous actor of Ray")
        if _is_asynchronous(kind) or _is_left("an actor of Ray"):
            return original(self, *_for_workers(args, kwargs), **options)
        call = calling.begin(WORKERS, PASSED, single=self)
        actor = _Actor()
        about.modified_class = _idle_class(kind, about.method_meta.methods)
        try:
            with task_seeds.unnumbered():
                handle = original(self, args, kwargs, **options)
        finally:
            about.modified_class = kind
        _actors[handle._actor_id.hex()] = actor
        try:
            given = _read(args, kwargs)
            if call is not None and options.get("name"):
                seeds.of_actor(call, options)
            inline.run(WORKERS, call, actor.make, (kind, *given), {}, process=actor.own)
        except Exception as error:
            actor.failure = _failure(f"{kind.__name__}.__init__", error)
        return handle

    return _remote


def _inline_method(original: Original) -> Original:
    @functools.wraps(original)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        name = self._method_name
        actor = _actors.get(actor_of(self) or "")
        if actor is None or name == "__ray_terminate__":
            return original(self, *_for_workers(args, kwargs), *more, **options)
        call = calling.begin(WORKERS, PASSED, single=self)
        returns = options.get("num_returns")
        if returns is None:
            returns = self._num_returns

        def run(args: Any, kwargs: Any) -> Any:
            if actor.failure is not None:
                raise actor.failure
            method = getattr(actor.instance, name)
            return inline.run(WORKERS, call, method, args, kwargs, process=actor.own)

        return _results(run, name, args, kwargs, returns)

    return _remote


def _inline_put(original: Original) -> Original:
    @functools.wraps(original)
    def put_object(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if is_reference(value) or isinstance(value, _ForWorkers):
            return original(self, getattr(value, "value", value), *args, **kwargs)
        held = value if isinstance(value, _Placeholder) else _Placeholder(value)
        with task_seeds.unnumbered():
            reference = original(self, held, *args, **kwargs)
        living = self.core_worker.get_all_reference_counts()
        for name in _held.keys() - living.keys():
            del _held[name]
        _held[_name(reference)] = held
        return reference

    return put_object


def _name(reference: Any) -> bytes:
    """The name by which Ray counts a reference."""
    name: str = reference.hex()
    return name.encode()


def _results(
    run: Callable[[Any, Any], Any], name: str, args: Any, kwargs: Any, returns: Any
) -> Any:
    """Run a task, and the references to what it returns."""
    ray: Any = sys.modules["ray"]
    many = returns in _MANY
    count = returns if isinstance(returns, int) else 1
    try:
        result = run(*_read(args, kwargs))
        results = list(result) if many or count > 1 else [result]
        if not many and len(results) != max(count, 1):
            raise ValueError(f"{count} results were expected of {name}, which has {len(results)}")
    except Exception as error:
        results = [_failure(name, error)] * max(count, 1)
    references = [ray.put(_Placeholder(one)) for one in results[: None if many else count]]
    if many:
        return iter(references)
    if len(references) < 2:
        return references[0] if references else None
    return references


def _failure(name: str, error: Exception) -> Exception:
    """What `ray.get` raises for a task that has raised `error`."""
    kind: Any = sys.modules["ray.exceptions"].RayTaskError
    failure: Exception = error
    if not isinstance(error, kind):
        failure = kind(name, traceback.format_exc(), error)
    return failure


def _read(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a task: a reference among them stands for its object."""
    ray: Any = sys.modules["ray"]
    copied = inline.state.isolation.pickled((tuple(args or ()), dict(kwargs or {})))

    def read(one: Any) -> Any:
        return ray.get(one) if is_reference(one) else one

    return tuple(map(read, copied[0])), {name: read(one) for name, one in copied[1].items()}


class _ForWorkers:
    """An object that Ray's store shall hold."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _for_workers(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a task that runs in a worker: it can read no placeholders."""
    ray: Any = sys.modules["ray"]

    def sent(one: Any) -> Any:
        held = _held.get(_name(one)) if is_reference(one) else None
        return one if held is None else ray.put(_ForWorkers(held.value))

    positional: Iterable[Any] = args or ()
    return [sent(one) for one in positional], {k: sent(one) for k, one in (kwargs or {}).items()}


def _is_left(what: str) -> bool:
    """Whether one of Ray's libraries hands this out, and not the program."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        frame = frame.f_back
        module = f"{frame.f_globals.get('__name__', '')}."
        if module.startswith(_LIBRARIES):
            inline.refuse(what)
            return True
        if not module.startswith("ray.") and not module.startswith("pytest_gradguard."):
            return False
    return False


def _is_asynchronous(kind: type) -> bool:
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for _, one in inspect.getmembers(kind, inspect.isfunction)
    )


def _idle_class(kind: type, names: Iterable[str]) -> type:
    """A class for the process of an actor that lives here."""
    own = {name: getattr(kind, name) if name.startswith("__ray_") else _idle for name in names}
    return type(kind.__name__, (), own)


def _idle(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""
