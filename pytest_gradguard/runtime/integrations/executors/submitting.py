"""The executors' `submit` and `map`, and what answers for a worker of theirs that never will."""

from __future__ import annotations

import functools
import time
import weakref
from types import FrameType, ModuleType
from typing import Any

from pytest_gradguard.runtime.integrations import joblib
from pytest_gradguard.runtime.integrations.executors import EXECUTOR, LOKY
from pytest_gradguard.runtime.kernel.attributes import plain_attribute
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch.methods import maps, submits
from pytest_gradguard.runtime.kernel.dispatch.remote import Chunk
from pytest_gradguard.runtime.kernel.patching import Patch
from pytest_gradguard.runtime.kernel.registry import Workers
from pytest_gradguard.runtime.pitfalls.lost.pickling_errors import watched_dump


def patches(name: str, workers: Workers, module: ModuleType) -> list[Patch]:
    """Watch the class `name` of executors in a module."""
    kind = getattr(module, name)
    submit = submits(workers, chunk_of, unwatched=is_watched_elsewhere, begun=_begun)
    return [
        Patch(kind, "submit", submit),
        Patch(kind, "map", maps(workers), inherited=True),
    ]


def is_watched_elsewhere(executor: Any, args: tuple[Any, ...]) -> bool:
    """Whether another integration watches what `executor` is given, or nobody can."""
    if len(args) == 1 and type(args[0]) is joblib.batches:
        return True
    kind: Any = type(executor)
    return _runs_interpreters(kind)


@functools.cache
def _runs_interpreters(kind: Any) -> bool:
    """Whether these threads run interpreters of their own, which share no objects."""
    return any(base.__module__ == "concurrent.futures.interpreter" for base in kind.__mro__)


def _begun(executor: Any, call: Call) -> None:
    if call.pool is None and (call.kind is EXECUTOR or call.kind is LOKY):
        call.pool = weakref.ref(executor)
    if call.workers is None and call.kind is EXECUTOR:
        call.workers = functools.partial(_workers, weakref.ref(executor))
        call.initializer = getattr(executor, "_initializer", None)


def _workers(executor: weakref.ref[Any]) -> list[Any]:
    return list((getattr(executor(), "_processes", None) or {}).values())


def chunk_of(function: Any, args: Any, kwargs: Any) -> Chunk | None:
    """The program's tasks in a chunk of `map`: partial(_process_chunk, function)(chunk)."""
    if not issubclass(type(function), functools.partial) or len(args) != 1:
        return None
    if plain_attribute(function.func, "__name__") != "_process_chunk":
        return None
    return Chunk(
        function.args[0],
        args[0],
        star=True,
        around=lambda other: (functools.partial(function.func, other), args, kwargs),
    )


def pickling(module: ModuleType) -> list[Patch]:
    """Watch what loky pickles by."""
    return [Patch(module, "dump", watched_dump)]


def answer(frame: FrameType, error: BaseException) -> None:
    """Answer, in a worker, for the task that its loop in `frame` runs."""
    known = frame.f_locals
    sendback = frame.f_globals["_sendback_result"]
    sendback(known["result_queue"], known["call_item"].work_id, exception=error)
    time.sleep(_PAUSE)


_PAUSE = 0.2
"""Seconds in which the executor takes an answer, before it notices that the process is gone."""
