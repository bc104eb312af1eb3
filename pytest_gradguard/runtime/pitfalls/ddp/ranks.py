"""Processes that the program starts, and that may become ranks: they report their findings."""

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
"""How many processes may be unread before they are checked for having ended."""


class _Reports:
    """The reports of one process, read on demand."""

    def __init__(self, pipe: Any, home: Collector) -> None:
        self.home = home
        self.known: list[Finding] = []
        self._line = Line(pipe, list[Finding])
        _open.add(self)

    def findings(self) -> list[Finding]:
        """All findings so far: each message repeats those of the one before."""
        with _lock:
            self._read()
            return self.known

    def _read(self) -> None:
        for findings in self._line.take():
            self.known = findings
        if self._line.pipe.closed:
            _open.discard(self)


_lock = Lock()
_open: weakref.WeakSet[_Reports] = dropped_at_end(weakref.WeakSet())
"""Reports whose processes may still write: each keeps a file open."""
_running: ByIdentity[_Reports] = dropped_at_end(ByIdentity())


def reporting_context(
    process: Any, call: Call, *, forked: bool
) -> AbstractContextManager[None] | None:
    """A block in which `process` is started and, once it is a rank, reports its findings.

    None if it cannot become one.

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
    reports = _running[process] = _Reports(read, call.collector)
    call.collector.listen(reports.findings)


def ended(process: Any) -> None:
    """`process` may have ended: once all have, report what is new."""
    reports = _running.get(process)
    if reports is None or process.exitcode is None:
        return
    _running.pop(process)
    reports.findings()
    home = reports.home
    if home.announce is not None and all(one.home is not home for one in _running.values()):
        home.announce([one for one in home.reported() if one.severity >= Severity.WARNING])
