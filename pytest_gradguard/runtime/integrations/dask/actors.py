"""Actors of `distributed`: what their methods are given and return.

A client makes an actor as it submits other tasks, and calls its methods directly. What these are
given is serialized later, in the client's event loop: so it is looked at as it is handed over.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.dask import WORKERS, opening, scattering, worker
from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import attempt, hidden_frame, theirs_only
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_ACTORS = 1_000
"""How many actors are known."""
_SOURCES = 16
"""How many calls are known that gave an actor something that requires grad."""
_known: dict[Any, deque[Call]] = dropped_at_end({})
"""By the keys of actors, these calls."""


def patches(module: ModuleType) -> list[Patch]:
    """Watch the methods of actors."""
    return [
        Patch(module.Actor, "__getattr__", _watched),
        Patch(module.ActorFuture, "_set_result", _received),
    ]


def made(call: Call, keys: Iterable[Any]) -> None:
    """Know the actors that `call` makes, by their keys."""
    for key in keys:
        if len(_known) >= _ACTORS:
            del _known[next(iter(_known))]
        _known[key] = deque([call], maxlen=_SOURCES)


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    written_in = original.__code__.co_filename

    @functools.wraps(original)
    def __getattr__(self: Any, name: str) -> Any:
        with hidden_frame:
            found = original(self, name)
        code = getattr(found, "__code__", None)
        if not _known or code is None or code.co_filename != written_in:
            return found  # a value of an attribute
        return attempt(_method, self, name, found, instead=found)

    return __getattr__


def _method(actor: Any, name: str, method: Any) -> Any:
    written = getattr(actor._cls, name)
    before = _known.get(actor.key)
    if before is None or inspect.iscoroutinefunction(written):
        return method
    if isinstance(written, types.FunctionType):
        written = types.MethodType(written, actor._cls)  # the arguments begin after `self`

    @functools.wraps(method)
    def func(*args: Any, **kwargs: Any) -> Any:
        call, named = attempt(_begin, actor._client, before, (written, args, kwargs), instead=_NONE)
        with hidden_frame:
            future = method(*args, **kwargs, **named)
        if call is not None:
            with theirs_only:
                attempt(collector.announce, call.collector, call.evidence.values())
        return future

    return func


_NONE: tuple[Call | None, dict[str, str]] = (None, {})


def _begin(
    client: Any, before: deque[Call], item: tuple[Any, Any, Any]
) -> tuple[Call | None, dict[str, str]]:
    """The call of a method that begins now, and the keyword that names it to the worker."""
    if client is None or not item[2].get("separate_thread", True):
        return _NONE
    call = calling.begin(WORKERS, opening.PASSED, single=client)
    if call is None:
        return _NONE
    opening.opened(client, call)
    given = scattering.ship(call, item)
    own = bool(call.shipped)
    for earlier in before:
        call.use(earlier)
    if own:
        before.append(call)
    opening.kept.append(call)
    return call, {worker.METHOD: worker.call_named(call.token, given)}


def _received(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _set_result(self: Any, out: Any) -> Any:
        return original(self, attempt(_opened, out, instead=out))

    return _set_result


def _opened(out: Any) -> Any:
    """What an actor has returned, without the notes that it brought; or its error."""
    value = getattr(out, "_v", None)
    result = worker.received(value)
    return out if result is value else type(out)(result)
