"""Processes that the program starts, and that may become ranks: they tell what they have found."""

from __future__ import annotations

import sys
import weakref
from contextlib import AbstractContextManager
from typing import Any

from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.rank_process import RankProcess
from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.dispatch.process_start import hearing
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.pipes import Line
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.pitfalls.ddp import C10D

_MANY = 16
"""How many processes may have ended unread before it is looked which have."""


class _Told:
    """What one process tells, read whenever somebody asks."""

    def __init__(self, pipe: Any, home: Collector) -> None:
        self.home = home
        self.known: list[Finding] = []
        self._line = Line(pipe, list[Finding])
        _open.add(self)

    def findings(self) -> list[Finding]:
        """All that was told up to now: each message has what the one before had, and more."""
        with _lock:
            self._read()
            return self.known

    def _read(self) -> None:
        for told in self._line.take():
            self.known = told
        if self._line.pipe.closed:
            _open.discard(self)


_lock = Lock()
_open: weakref.WeakSet[_Told] = dropped_at_end(weakref.WeakSet())
"""Those whose processes may still tell: each keeps a file open."""
_running: ByIdentity[_Told] = dropped_at_end(ByIdentity())


def telling(process: Any, call: Call, *, forked: bool) -> AbstractContextManager[None] | None:
    """A block in which `process` is started; what it finds once it is a rank is reported here.

    None where it cannot become one.

    Args:
        process: the program's `Process`.
        call: the call that starts it.
        forked: it inherits the guard.
    """
    if len(_open) >= _MANY:  # nobody has joined the processes, or asked
        for earlier in list(_open):
            earlier.findings()
    if C10D not in sys.modules:
        return None
    ignore = call.collector.ignore | collector.allowed_now()
    return hearing(
        process,
        lambda inner, write: RankProcess(process, inner, write, ignore, forked),
        lambda read: _listen(process, call, read),
    )


def _listen(process: Any, call: Call, read: Any) -> None:
    told = _running[process] = _Told(read, call.collector)
    call.collector.listen(told.findings)


def ended(process: Any) -> None:
    """`process` may have ended: once all have, report what is new."""
    told = _running.get(process)
    if told is None or process.exitcode is None:
        return
    _running.pop(process)
    told.findings()
    home = told.home
    if home.announce is not None and all(one.home is not home for one in _running.values()):
        home.announce([one for one in home.told() if one.severity >= Severity.WARNING])
