"""Actors of `distributed`: what their methods are given and return.

A client makes an actor as it submits other tasks, and calls its methods directly. What these are
given is serialized later, in the client's event loop: so it is looked at as it is handed over.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations.dask import WORKERS, opening, scattering, worker
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.observing import Arguments, observe, observed
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
    written_in = module.Actor.__getattr__.__code__.co_filename
    return [
        observe(module.Actor, "__getattr__", result=functools.partial(_got, written_in)),
        observe(module.ActorFuture, "_set_result", arguments=_received),
    ]


def made(call: Call, keys: Iterable[Any]) -> None:
    """Know the actors that `call` makes, by their keys."""
    for key in keys:
        if len(_known) >= _ACTORS:
            del _known[next(iter(_known))]
        _known[key] = deque([call], maxlen=_SOURCES)


def _got(written_in: str, found: Any, actor: Any, name: str) -> Any:
    """The method `found` of an actor, watched; None for the value of an attribute."""
    code = getattr(found, "__code__", None)
    if not _known or code is None or code.co_filename != written_in:
        return None
    written = getattr(actor._cls, name)
    before = _known.get(actor.key)
    if before is None or inspect.iscoroutinefunction(written):
        return None
    if isinstance(written, types.FunctionType):
        written = types.MethodType(written, actor._cls)  # the arguments begin after `self`
    begin = functools.partial(_begin, actor._client, before, written)
    return observed(before=begin, arguments=_named, after=_ended)(found)


_Begun = tuple[Call, dict[str, str]]
"""The call of a method, and the keyword that names it to the worker."""


def _begin(
    client: Any, before: deque[Call], method: Any, /, *args: Any, **kwargs: Any
) -> _Begun | None:
    if client is None or not kwargs.get("separate_thread", True):
        return None
    call = calling.begin(WORKERS, opening.PASSED, single=client)
    if call is None:
        return None
    opening.opened(client, call)
    given = scattering.ship(call, (method, args, kwargs))
    own = bool(call.shipped)
    for earlier in before:
        call.use(earlier)
    if own:
        before.append(call)
    opening.kept.append(call)
    return call, {worker.METHOD: worker.call_named(call.token, given)}


def _named(begun: _Begun, /, *args: Any, **kwargs: Any) -> Arguments:
    return args, {**kwargs, **begun[1]}


def _ended(begun: _Begun, /, *_: Any, **__: Any) -> None:
    begun[0].announce()


def _received(future: Any, out: Any) -> Arguments | None:
    """What an actor has returned, without the notes that it brought; or its error."""
    value = getattr(out, "_v", None)
    result = worker.received(value)
    return None if result is value else ((future, type(out)(result)), {})
