"""Where findings gather: collectors, which of them listens where, and what is allowed there.

A parallel call and everything that comes of it reports to the collector that was innermost when
the call began, whichever thread it is noticed in.
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
        announce: called with the new findings of a call when it ends, in the caller's thread;
            it may warn or raise.

    Attributes:
        empty: nothing was noticed so far.
        open: how many times it has been entered and not left.
        hear: called as `announce` where that is None; it neither warns nor raises.
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
        """What is counted of the parallel calls at `site` to that kind of workers."""
        key = (site.key, backend)
        known = self._tallies.get(key)
        if known is None:
            from pytest_gradguard.findings import Location
            from pytest_gradguard.tallies import Tally

            # Its place waits until somebody asks: to find the columns of a line takes time.
            known = self._tallies.setdefault(key, (site, Tally(Location("", 1), backend)))
        return known[1]

    @property
    def tallies(self) -> list[Tally]:
        """What was counted so far of the parallel calls, by place."""
        counted = list(self._tallies.values())
        if not counted:
            return []
        from pytest_gradguard.tallies import merge_tallies

        return merge_tallies(replace(tally, location=site.location()) for site, tally in counted)

    def evidence(self, key: object, make: Callable[[], Evidence]) -> Evidence:
        """The evidence that stands under `key`, made where there is none yet."""
        known = self._evidence.get(key)
        if known is None:  # setdefault is atomic: several threads may report at once
            known = self._evidence.setdefault(key, make())
            self.empty = here.quiet = False
        return known

    def add(self, finding: Finding) -> None:
        """Take a finding that is complete already (from a guarded worker)."""
        if finding.code not in self.ignore:
            self._made.append(finding)
            self.empty = here.quiet = False

    def ask_first(self, hear: Callable[[], object]) -> None:
        """Call `hear` whenever findings are asked for, before they are built."""
        if hear not in self._first:
            self._first.append(hear)
            self.empty = False

    def listen(self, others: Callable[[], list[Finding]]) -> None:
        """Take, whenever findings are asked for, what another process has told."""
        self._others.append(others)
        self.empty = False

    def reported(self) -> list[Finding]:
        """What other processes have told so far, equal findings merged."""
        reports = (attempt(others, instead=[]) for others in list(self._others))
        return _merged(itertools.chain.from_iterable(reports))

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, equal findings merged, in the order of first notice."""
        for hear in list(self._first):
            attempt(hear)
        built = (_built(evidence) for evidence in list(self._evidence.values()))
        found = itertools.chain(filter(None, built), list(self._made), self.reported())
        return [replace(finding, test=self.test) for finding in _merged(found)]


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same, equal ones merged; what findings are is imported once there are some."""
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
    """What a worker process remembers from batch to batch; one object, for small batches touch it.

    Attributes:
        inside: where the findings of the tasks in this worker gather, until they are taken.
        running: the tasks of joblib's batch that runs; `inside` hears what no open collector does.
        quiet: nothing is open or noticed here, and no look is roused: most small batches have
            nothing to say. What changes that unsets it; `worker.settle` sets it again.
    """

    __slots__ = ("inside", "quiet", "running")

    def __init__(self) -> None:
        self.inside = Collector()
        self.running: Any = None
        self.quiet = False


here = _Here()
stack: list[Collector] = []
"""Those that hear what no guard of its own context hears, the innermost last: what `install` made,
the listeners of watches, that of a worker process, and the guards of the main thread."""


class Allowance:
    """Codes that one `allow` block permits."""

    def __init__(self, codes: frozenset[str]) -> None:
        self.codes = codes
        self.open = 0


Scope = Collector | Allowance
"""A block that holds for its own context, and for the threads and tasks that are started in it."""


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
"""The scopes that a task of an event loop, or one that it was made in, has entered."""


def around() -> list[Scope]:
    """The open scopes of this context, the innermost last."""
    inherited = _thread.inherited
    for scope in reversed(inherited):
        if isinstance(scope, Collector):
            if not scope.open:  # the thread outlives its block, as those of pools do
                inherited = [one for one in inherited if one not in stack]
            break
    # A block may be left in another context than it was entered in, so that it stays listed here.
    return [scope for scope in (*inherited, *_thread.scopes, *_task.get()) if scope.open]


def starts(thread: threading.Thread) -> None:
    """Let the scopes of this context hold in `thread`, which it is about to start."""
    scopes = around()
    if scopes:
        _started_in[thread] = scopes


def innermost(scopes: list[Scope] | None = None) -> Collector | None:
    """The collector that new calls report to, or None where nobody listens.

    It is that of the guard around this place, in its own thread or task or in the one that has
    started it. Where there is none, as in a thread that is older than the guard, it is the
    innermost of the main thread's and of those that are open for the whole process.

    Args:
        scopes: those that were `around` another place; by default they are those around this one.
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
    scope.open -= 1  # where it is still open, it stays listed until its last block ends
    if _task.get():
        _task.set(tuple(one for one in _task.get() if one.open))
    _thread.scopes = [one for one in _thread.scopes if one.open]


def _in_a_task() -> bool:
    """Whether an event loop runs in this thread, which may go on with another task at any time."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


def _after_fork() -> None:
    """In a forked child, what listened where it was forked listens in the whole process."""
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

    It holds for this thread or task, and for those that are started meanwhile; in the main thread
    it hears what no other listens to, too.
    """
    enter(collector, everywhere=threading.get_ident() == threading.main_thread().ident)


def enter(collector: Collector, *, everywhere: bool = True) -> None:
    """Make `collector` the innermost one here; or everywhere, where no other is around."""
    here.quiet = False
    _enter_here(collector)
    if everywhere:
        stack.append(collector)


def enter_first(collector: Collector) -> None:
    """Make `collector` the outermost one: it hears what no other listens to."""
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
    """Permit `codes` in calls and backwards begun meanwhile.

    It holds for this thread or task, and for those that are started meanwhile.
    """
    allowance = attempt(Allowance, codes)
    attempt(_enter_here, allowance)
    try:
        yield
    finally:
        attempt(_leave_here, allowance)


def announce(home: Collector, evidence: Iterable[Evidence]) -> None:
    """Tell `home` what a call or a backward found, for it to warn or raise of.

    Raises:
        GradGuardError: the collector's mode is ``"error"``.
        GradGuardWarning: the user's warning filters make errors of warnings.
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
