"""One log of what happens to tensors, shared by all open watches of a framework.

The first watch begins the log and applies the patches that write it; the last one ends it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, TypeVar

from pytest_gradguard.gradients.flow import Chain
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.observing import caller, observed

_events = itertools.count(1)


def now() -> int:
    """Number of the current event, in one order for all frameworks."""
    return next(_events)


@dataclass
class Record:
    """Events at one call site, however many.

    Attributes:
        first, last: numbers of the first and the last event (`now`).
        count: the number of events.
    """

    site: Site | None = None
    chain: Chain = ()
    first: int = 0
    last: int = 0
    count: int = 0

    def again(self) -> None:
        """Record one more event here."""
        self.last = now()
        self.first = self.first or self.last
        self.count += 1


RecordT = TypeVar("RecordT", bound=Record)


class Log:
    """Events since the first open watch began.

    Attributes:
        listeners: the open watches, which are notified of each backward pass.
        all_listeners: all watches of this log, including ended ones.
    """

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.all_listeners: weakref.WeakSet[Any] = weakref.WeakSet()

    def record_at(
        self,
        records: dict[object, RecordT],
        kind: str,
        frames: list[FrameType],
        make: Callable[..., RecordT],
        **fields: Any,
    ) -> RecordT:
        """The record of `kind` at the innermost of `frames`, made with `fields` if there is none.

        Args:
            records: the table of records.
            kind: the kind of event.
            frames: the call chain that distinguishes it, the innermost first.
            make: the type of the record.
            fields: its fields, in addition to `site` and `chain`.
        """
        key = (kind, *((frame.f_code, frame.f_lasti) for frame in frames))
        known = records.get(key)
        if known is None:
            chain = tuple(callsite.site_of(frame) for frame in frames)
            site = chain[0] if chain else callsite.user_site()
            known = records.setdefault(key, make(site, chain, **fields))
        return known


LogT = TypeVar("LogT", bound=Log)


class Recorder(Generic[LogT]):
    """Creates the log with the first listener and drops it with the last.

    Attributes:
        log: the log that is being written, or None.
    """

    def __init__(self, make: Callable[[], LogT]) -> None:
        self.log: LogT | None = None
        self._make = make
        self._lock = Lock()

    def start(
        self, listener: Any, patch: Callable[[LogT], None], undo: Callable[[LogT], None]
    ) -> LogT:
        """Begin to record for `listener`; for the first one, `patch` the functions to record."""
        with self._lock:
            log = self.log
            if log is None:
                log = self.log = self._make()
                try:
                    patch(log)
                except BaseException:
                    self._end(log, undo)
                    raise
            log.listeners.append(listener)
            log.all_listeners.add(listener)
            return log

    def stop(self, listener: Any, undo: Callable[[LogT], None]) -> None:
        """Undo one `start`; the last one restores every patched name."""
        with self._lock:
            log = self.log
            if log is not None and listener in log.listeners:
                log.listeners.remove(listener)
                if not log.listeners:
                    self._end(log, undo)

    def _end(self, log: LogT, undo: Callable[[LogT], None]) -> None:
        self.log = None
        undo(log)


def noted(
    current: Callable[[], Any], note: Callable[..., Any], *, before: bool = False
) -> Callable[[Any], Any]:
    """Make a wrapper that records each call of a function; a fault in `note` is a warning.

    Args:
        current: returns the log that is being written, or None.
        note: called with the log, the caller's frame, the function's result and its arguments.
        before: call `note` before the function, with None as its result.
    """

    def begin(*args: Any, **kwargs: Any) -> Any:
        log = current()
        if log is not None and before:
            note(log, caller(), None, *args, **kwargs)
        return log

    def end(log: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        note(log, caller(), result, *args, **kwargs)

    return observed(before=begin, after=None if before else end)
