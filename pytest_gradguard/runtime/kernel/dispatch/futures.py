"""The futures of a call: they keep the call alive, and announce its findings.

In the modes that warn or raise, findings are announced as the program asks for the result, in its
own thread: the future's class is replaced by a subclass.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt, fault, theirs_only, without_this_frame

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


_announcing_kinds: dict[type, type] = {}


def _announcing(kind: type) -> type:
    if getattr(kind, "_gradguard_announces", False):
        return kind
    if kind in _announcing_kinds:
        return _announcing_kinds[kind]
    asks = {name: _announcing_method(getattr(kind, name)) for name in _ASKS if hasattr(kind, name)}
    if "next" in asks:
        asks["__next__"] = asks["next"]
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    attributes = {**about, **asks, "_gradguard_announces": True}
    announcing = _announcing_kinds[kind] = type(kind.__name__, (kind,), attributes)
    return announcing


def _announcing_method(original: Any) -> Any:
    @functools.wraps(original)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            try:
                attempt(_announce, self)
            except (GradGuardError, GradGuardWarning):
                if isinstance(error, StopIteration):
                    raise
            raise
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if not attempt(_is_event_loop, asking) and not hasattr(self, "next"):
            with theirs_only:
                attempt(_announce, self)
        return result

    return ask


def _is_event_loop(asking: Any) -> bool:
    """Whether asyncio copies the result: an error there would leave a task waiting."""
    return isinstance(asking, str) and asking.startswith("asyncio")


def _announce(future: Any) -> None:
    call: Call = future._gradguard_call
    collector.announce(call.collector, call.evidence.values())
