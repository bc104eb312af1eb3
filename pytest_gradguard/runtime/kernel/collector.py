"""Where findings are collected: collectors, where each applies, and what is allowed there.

A parallel call and everything that results from it reports to the collector that was innermost when
the call began, whichever thread notices it.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.lineage import in_child
from pytest_gradguard.severity import Severity

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.runtime.kernel.callsite import Site
    from pytest_gradguard.runtime.kernel.evidence import Evidence
    from pytest_gradguard.tallies import Tally

Announce = Callable[["list[Finding]"], None]


_numbers = itertools.count(1)


class Collector:
    """Gathers the findings of one test, one `guard()` block or one program.

    Args:
        test: the test that findings belong to, as its node id.
        ignore: codes that are dropped.
        announce: called with the new findings of a call when it ends, in the caller's thread; it
            may warn or raise.

    Attributes:
        empty: nothing was noticed so far.
        open: how many times it has been entered and not left.
        hear: called in place of a missing `announce`; it neither warns nor raises.
    """

    hear: Announce | None = None

    def __init__(
        self,
        test: str | None = None,
        ignore: frozenset[str] = frozenset(),
        announce: Announce | None = None,
    ) -> None:
        self.number = next(_numbers)
        self.test = test
        self.ignore = ignore
        self.announce = announce
        self._first: list[Callable[[], object]] = []
        self.empty = True
        self.open = 0
        self._evidence: dict[object, Evidence] = {}
        self._made: list[Finding] = []
        self._others: list[Callable[[], list[Finding]]] = []
        self._tallies: dict[object, tuple[Site, Tally]] = {}

    def tally(self, site: Site, backend: str) -> Tally:
        """The counts of the parallel calls at `site` to that kind of workers."""
        key = (site.key, backend)
        known = self._tallies.get(key)
        if known is None:
            from pytest_gradguard.findings import Location
            from pytest_gradguard.tallies import Tally

            # Its place is computed on demand: finding the columns of a line takes time.
            known = self._tallies.setdefault(key, (site, Tally(Location("", 1), backend)))
        return known[1]

    @property
    def tallies(self) -> list[Tally]:
        """The counts of the parallel calls so far, by place."""
        counted = list(self._tallies.values())
        if not counted:
            return []
        from pytest_gradguard.tallies import merge_tallies

        return merge_tallies(replace(tally, location=site.location()) for site, tally in counted)

    def evidence(self, key: object, make: Callable[[], Evidence]) -> Evidence:
        """The evidence under `key`, created if missing."""
        known = self._evidence.get(key)
        if known is None:  # setdefault is atomic: several threads may report at once
            known = self._evidence.setdefault(key, make())
            self.empty = here.quiet = False
        return known

    def add(self, finding: Finding) -> None:
        """Add a finding that is complete already (from a guarded worker)."""
        if finding.code not in self.ignore:
            self._made.append(finding)
            self.empty = here.quiet = False

    def ask_first(self, hear: Callable[[], object]) -> None:
        """Call `hear` whenever findings are requested, before they are built."""
        if hear not in self._first:
            self._first.append(hear)
            self.empty = False

    def listen(self, others: Callable[[], list[Finding]]) -> None:
        """Include the reports of another process whenever findings are requested."""
        self._others.append(others)
        self.empty = False

    def reported(self) -> list[Finding]:
        """The reports of other processes so far, equal findings merged."""
        reports = (attempt(others, instead=[]) for others in list(self._others))
        return _merged(itertools.chain.from_iterable(reports))

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, equal ones merged, in the order of first notice."""
        for hear in list(self._first):
            attempt(hear)
        built = (_built(evidence) for evidence in list(self._evidence.values()))
        found = itertools.chain(filter(None, built), list(self._made), self.reported())
        return [replace(finding, test=self.test) for finding in _merged(found)]


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge equal findings; their module is imported only if there are any."""
    known = list(findings)
    if not known:
        return []
    from pytest_gradguard.findings import merge, placed

    return merge(map(placed, known))


def _built(evidence: Evidence) -> Finding | None:
    try:
        return evidence.build()
    except Exception as error:
        fault(error)
        return None


class _Here:
    """The state of a worker process between batches; one object, for speed in small batches.

    Attributes:
        inside: collects the findings of the tasks in this worker, until they are taken.
        running: the running tasks of a joblib batch; `inside` then collects what no open collector
            does.
        quiet: nothing is open or noticed here, and no probe is active: most small batches have
            nothing to report. Any change unsets it; `worker.settle` sets it again.
    """

    __slots__ = ("inside", "quiet", "running")

    def __init__(self) -> None:
        self.inside = Collector()
        self.running: Any = None
        self.quiet = False


here = _Here()
stack: list[Collector] = []
"""The collectors for places without a guard of their own, the innermost last: that of `install`,
the listeners of watches, that of a worker process, and the guards of the main thread."""


class Allowance:
    """Codes that one `allow` block permits."""

    def __init__(self, codes: frozenset[str]) -> None:
        self.codes = codes
        self.open = 0


Scope = Collector | Allowance
"""A block that applies to its own context, and to threads and tasks started in it."""


class _Thread(threading.local):
    """The scopes of one thread: those that it was started in, and its own."""

    def __init__(self) -> None:
        ident = threading.get_ident()  # not `current_thread`, which makes up a missing one
        thread = next((one for one in threading.enumerate() if one.ident == ident), None)
        self.inherited = [] if thread is None else (_started_in.pop(thread) or [])
        self.scopes: list[Scope] = []


_started_in: ByIdentity[list[Scope]] = ByIdentity()
_thread = _Thread()
_task: ContextVar[tuple[Scope, ...]] = ContextVar("gradguard_scopes", default=())
"""The scopes entered by a task of an event loop, or by its creator."""


def around() -> list[Scope]:
    """The open scopes of this context, the innermost last."""
    inherited = _thread.inherited
    for scope in reversed(inherited):
        if isinstance(scope, Collector):
            if not scope.open:  # the thread outlives its block, as those of pools do
                inherited = [one for one in inherited if one not in stack]
            break
    # A block may be left in a context other than the one it was entered in, and remain listed here.
    return [scope for scope in (*inherited, *_thread.scopes, *_task.get()) if scope.open]


def starts(thread: threading.Thread) -> None:
    """Apply the scopes of this context to `thread`, which it is about to start."""
    scopes = around()
    if scopes:
        _started_in[thread] = scopes


def innermost(scopes: list[Scope] | None = None) -> Collector | None:
    """The collector that new calls report to, or None without any.

    It is that of the guard around this place, in its own thread or task or in the one that started
    it. Without one, as in a thread that is older than the guard, it is the innermost of the main
    thread's and of those that are open for the whole process.

    Args:
        scopes: those that were `around` another place; by default those around this one.
    """
    for scope in reversed(around() if scopes is None else scopes):
        if isinstance(scope, Collector):
            return scope
    if stack:
        return stack[-1]
    return None if here.running is None else here.inside


def _enter_here(scope: Scope) -> None:
    scope.open += 1
    if _in_a_task():
        _task.set((*(one for one in _task.get() if one.open), scope))
    else:
        _thread.scopes = [*(one for one in _thread.scopes if one.open), scope]


def _leave_here(scope: Scope) -> None:
    scope.open -= 1  # if still open, it is listed until its last block ends
    if _task.get():
        _task.set(tuple(one for one in _task.get() if one.open))
    _thread.scopes = [one for one in _thread.scopes if one.open]


def _in_a_task() -> bool:
    """Whether an event loop runs in this thread, which may switch to another task at any time."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


def _after_fork() -> None:
    """In a forked child, make the collector of the forking thread that of the whole process."""
    listening = attempt(innermost)
    _thread.inherited, _thread.scopes = [], []
    _task.set(())
    if listening is not None and listening is not here.inside and listening not in stack:
        stack.append(listening)


in_child(lambda: attempt(_after_fork))


@contextmanager
def collecting(collector: Collector) -> Iterator[Collector]:
    """Make `collector` the one that calls and backwards in the block report to (`enter_here`)."""
    attempt(enter_here, collector)
    try:
        yield collector
    finally:
        attempt(leave, collector)


def enter_here(collector: Collector) -> None:
    """Make `collector` the one that parallel calls and backwards begun from now on report to.

    It applies to this thread or task, and to those started in the meantime; in the main thread,
    also to threads without a collector of their own.
    """
    enter(collector, everywhere=threading.get_ident() == threading.main_thread().ident)


def enter(collector: Collector, *, everywhere: bool = True) -> None:
    """Make `collector` the innermost one here; `everywhere`: also for places without one."""
    here.quiet = False
    _enter_here(collector)
    if everywhere:
        stack.append(collector)


def enter_first(collector: Collector) -> None:
    """Make `collector` the outermost one, for places without any other."""
    here.quiet = False
    collector.open += 1
    stack.insert(0, collector)


def leave(collector: Collector) -> None:
    """Undo one `enter`."""
    _leave_here(collector)
    for index in range(len(stack) - 1, -1, -1):
        if stack[index] is collector:
            del stack[index]
            return


def allowed_now(scopes: list[Scope] | None = None) -> frozenset[str]:
    """The codes that the `allow` blocks around this place permit; `scopes` as for `innermost`."""
    found = around() if scopes is None else scopes
    return frozenset().union(*(s.codes for s in found if isinstance(s, Allowance)))


@contextmanager
def allowing(codes: frozenset[str]) -> Iterator[None]:
    """Permit `codes` in calls and backwards begun in the block.

    It applies to this thread or task, and to those started in the meantime.
    """
    allowance = attempt(Allowance, codes)
    attempt(_enter_here, allowance)
    try:
        yield
    finally:
        attempt(_leave_here, allowance)


def announce(home: Collector, evidence: Iterable[Evidence]) -> None:
    """Pass the findings of a call or a backward pass to `home`, which may warn or raise.

    Raises:
        GradGuardError: the collector's mode is ``"error"``.
        GradGuardWarning: the user's warning filters turn warnings into errors.
    """
    tell = home.announce or home.hear
    if tell is None:
        return
    try:
        built = list(filter(None, map(_built, list(evidence))))
        findings = [finding for finding in built if finding.severity >= Severity.WARNING]
        if findings:
            from pytest_gradguard.findings import placed

            findings = list(map(placed, findings))
        tell(findings)
    except Exception as error:
        fault(error)
