"""What the program holds of a call to workers: it keeps the call alive, and tells of it.

In the modes that warn or raise, findings are told when the program asks for the result, in its own
thread: by a subclass of the future's own class, which it becomes.
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import caller, observed

_ASKS = ("result", "get", "next")
"""How futures, results of pools and their iterators are asked."""


def belongs_to(call: Call, future: Any, /, *_: Any, **__: Any) -> None:
    """Tie `future` to its call: results know their call by it."""
    try:
        future._gradguard_call = call
        if call.collector.announce is not None:
            future.__class__ = _telling(type(future))
    except Exception as error:
        fault(error)


def submitted(task: Any, future: Any, /, *_: Any, **__: Any) -> None:
    """Tie `future` to the call of the shipped `task` whose result it is."""
    belongs_to(task.call, future)


_telling_kinds: dict[type, type] = {}


def _telling(kind: type) -> type:
    if getattr(kind, "_gradguard_tells", False):
        return kind
    if kind in _telling_kinds:
        return _telling_kinds[kind]
    tells = observed(after=_asked, failed=_failed)
    asks = {name: tells(getattr(kind, name)) for name in _ASKS if hasattr(kind, name)}
    if "next" in asks:
        asks["__next__"] = asks["next"]
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    attributes = {**about, **asks, "_gradguard_tells": True}
    telling = _telling_kinds[kind] = type(kind.__name__, (kind,), attributes)
    return telling


def _asked(result: Any, future: Any, *args: Any, **kwargs: Any) -> None:
    asking = caller().f_globals.get("__name__", "")
    # Where asyncio copies the result it expects no error, and a task would wait on.
    if not str(asking).startswith("asyncio") and not hasattr(future, "next"):
        future._gradguard_call.announce()


def _failed(error: BaseException, future: Any, *args: Any, **kwargs: Any) -> None:
    try:
        future._gradguard_call.announce()
    except (GradGuardError, GradGuardWarning):
        if isinstance(error, StopIteration):
            raise
