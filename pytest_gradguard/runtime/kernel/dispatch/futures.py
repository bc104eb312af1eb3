"""The futures of a call: they keep the call alive, and announce its findings.

In the modes that warn or raise, findings are announced as the program asks for the result, in its
own thread: the future's class is replaced by a subclass.
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.observing import caller, observed

_ASKS = ("result", "get", "next")
"""The methods for the result of futures, pool results and their iterators."""


def belongs_to(future: Any, call: Call) -> None:
    """Tie `future` to its call: results find their call through it."""
    try:
        future._gradguard_call = call
        if call.collector.announce is not None:
            future.__class__ = _announcing(type(future))
    except Exception as error:
        fault(error)


def submitted(task: Any, future: Any, /, *_: Any, **__: Any) -> None:
    """Tie `future` to the call of the shipped `task` whose result it is."""
    belongs_to(future, task.call)


_announcing_kinds: dict[type, type] = {}


def _announcing(kind: type) -> type:
    if getattr(kind, "_gradguard_announces", False):
        return kind
    if kind in _announcing_kinds:
        return _announcing_kinds[kind]
    announcing_method = observed(after=_asked, failed=_failed)
    asks = {name: announcing_method(getattr(kind, name)) for name in _ASKS if hasattr(kind, name)}
    if "next" in asks:
        asks["__next__"] = asks["next"]
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    attributes = {**about, **asks, "_gradguard_announces": True}
    announcing = _announcing_kinds[kind] = type(kind.__name__, (kind,), attributes)
    return announcing


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
