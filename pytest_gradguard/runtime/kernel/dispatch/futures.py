"""What the program holds of a call to workers: it keeps the call alive, and tells of it.

In the modes that warn or raise, findings are told when the program asks for the result, in its own
thread: by a subclass of the future's own class, which it becomes.
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
"""How futures, results of pools and their iterators are asked."""


def belongs_to(future: Any, call: Call) -> None:
    """Tie `future` to its call: results know their call by it."""
    try:
        future._gradguard_call = call
        if call.collector.announce is not None:
            future.__class__ = _telling(type(future))
    except Exception as error:
        fault(error)


_telling_kinds: dict[type, type] = {}


def _telling(kind: type) -> type:
    if getattr(kind, "_gradguard_tells", False):
        return kind
    if kind in _telling_kinds:
        return _telling_kinds[kind]
    asks = {name: _told(getattr(kind, name)) for name in _ASKS if hasattr(kind, name)}
    if "next" in asks:
        asks["__next__"] = asks["next"]
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    attributes = {**about, **asks, "_gradguard_tells": True}
    telling = _telling_kinds[kind] = type(kind.__name__, (kind,), attributes)
    return telling


def _told(original: Any) -> Any:
    @functools.wraps(original)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            try:
                attempt(_tell, self)
            except (GradGuardError, GradGuardWarning):
                if isinstance(error, StopIteration):
                    raise
            raise
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if not attempt(_is_event_loop, asking) and not hasattr(self, "next"):
            with theirs_only:
                attempt(_tell, self)
        return result

    return ask


def _is_event_loop(asking: Any) -> bool:
    """Whether asyncio copies the result: it expects no error there, and a task would wait on."""
    return isinstance(asking, str) and asking.startswith("asyncio")


def _tell(future: Any) -> None:
    call: Call = future._gradguard_call
    collector.announce(call.collector, call.evidence.values())
