"""A process that the program starts itself tells what the probes note of its function there.

It is looked at as a task is, from its first line to its last: what it sends to other processes is
what a task returns. It tells how things stand whenever that changes, as anything may end it. What
it sends with a graph, where nothing refuses that, it tells as it is pickled. A forked one has the
guard, and tells what that found of its own calls, too.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any

from pytest_gradguard.daemon_process import through
from pytest_gradguard.rank_process import is_rank
from pytest_gradguard.runtime.integrations.processes.sending import sends
from pytest_gradguard.runtime.kernel import collector, probes, running
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.dispatch import reporting
from pytest_gradguard.runtime.kernel.dispatch.process_start import (
    hearing,
    package_of,
    ships_gradients,
    when_loaded,
)
from pytest_gradguard.runtime.kernel.dispatch.reporting import Reporter
from pytest_gradguard.runtime.kernel.faults import attempt, hidden_frame
from pytest_gradguard.runtime.pitfalls.lost import pickling_errors, queue_puts

_TORCH = "torch.nn.parameter"
_TORCH_IS_WHOLE = "torch.optim.optimizer"
"""A module that torch imports late."""
_PITFALLS = "pytest_gradguard.runtime.pitfalls"
_RESULTS = f"{_PITFALLS}.lost.process_results"  # it needs torch, as those below
_GRADIENTS = f"{_PITFALLS}.kept.process_gradients"
_STEPS = f"{_PITFALLS}.kept.worker_gradients"
_MODULES = f"{_PITFALLS}.modules.sent_modules"
_SENT = "gg103"
_RANKS_SHARE = frozenset(("gg304", "gg305"))
"""The probes of random numbers: the ranks of a group often have to draw the same."""


# -- in the parent ---------------------------------------------------------------------------------


def told(
    process: Any, call: Call, task: tuple[Any, Any, Any], *, forked: bool
) -> AbstractContextManager[None] | None:
    """A block in which `process` is started; what it tells is noted of `call`.

    None where there is nothing to tell.

    Args:
        process: the program's `Process`.
        call: the call that starts it.
        task: its function, and its arguments.
        forked: it inherits its arguments; else they are pickled.
    """
    asked = probes.start(call, task, forked)
    torch = _TORCH in sys.modules
    results = torch and not call.within_autograd
    gradients = torch and "GG106" not in call.dropped
    if not (asked or results or gradients):
        return None
    if forked:  # once, and not in each process
        for module in [_RESULTS, _MODULES] * results + [_GRADIENTS] * gradients:
            attempt(import_module, module)
    return hearing(
        process,
        lambda inner, write: Run(
            process, inner, write, task, asked, results, gradients, call, forked
        ),
        lambda read: _expect(call, read, results, gradients),
    )


def _expect(call: Call, read: Any, results: bool, gradients: bool) -> None:
    reporting.expect(call, read)
    if results:
        from pytest_gradguard.runtime.pitfalls.lost import arriving

        arriving.expect(reporting.receive)
        import_module(_MODULES).expect()
    if gradients:
        import_module(_STEPS).listen()


# -- in the process --------------------------------------------------------------------------------


class Run:
    """In place of the method `run` of a process.

    Args:
        process: the process.
        inner: what stands in that place already.
        write: the end of a pipe to tell it to.
        task: its function, and its arguments.
        asked: what the probes asked.
        results: what it sends with a graph is told, too.
        gradients: what becomes of the gradients that it computes is told, too.
        call: the call that starts it, in the parent.
        forked: it inherits its arguments.
    """

    def __init__(
        self,
        process: Any,
        inner: Any,
        write: Any,
        task: tuple[Any, Any, Any],
        asked: Mapping[str, Any],
        results: bool,
        gradients: bool,
        call: Call | None = None,
        forked: bool = False,
    ) -> None:
        self._process = process
        self._inner = inner
        self._write = write
        self._items = [task]
        self._asked = asked
        self._results = results
        self._gradients = gradients
        self._call = call
        self._forked = forked

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments of the process are pickled by now: it is the attribute set last.
        package = package_of(self._process)
        shipped = attempt(ships_gradients, self._call)
        shipped = bool(shipped or attempt(queue_puts.may_receive, package, self._process))
        if not (self._asked or shipped):
            inner = self._inner
            return (operator.getitem, ((inner,), 0)) if inner else (getattr, (self._process, "run"))
        about = (self._process, self._inner, self._write, self._items[0], self._asked)
        return Run, (*about, self._results and shipped, self._gradients and shipped)

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        run = work or type(self._process).run.__get__(self._process)
        run = attempt(through, run, self._process, self._inner, instead=run)
        watched = attempt(_Watched, self)
        own = attempt(self._gathering) if self._forked else None
        error: BaseException | None = None
        try:
            with hidden_frame:
                return run()
        except BaseException as raised:
            error = raised
            raise
        finally:
            if watched is not None:
                attempt(watched.end, error)
                if own is not None:
                    attempt(watched.tell_found, own)

    def _gathering(self) -> Collector:
        """Where findings of this forked process's own calls gather from now on.

        What was found before the fork stays with the parent's.
        """
        outer = collector.innermost()
        ignore = frozenset() if self._call is None else self._call.dropped
        own = Collector(ignore=ignore, announce=None if outer is None else outer.announce)
        collector.enter(own)
        return own


class _Watched:
    """What this process does, from now on."""

    def __init__(self, run: Run) -> None:
        self._inner = run._inner
        self._items = items = run._items
        self._reporter = reporter = Reporter(run._write, run._process)
        self._gradients: Any = None
        self._standing: list[tuple[str, Any]] = []
        self._package = package_of(run._process)
        running.enter(items)
        if run._gradients:
            when_loaded(_TORCH_IS_WHOLE, self._watch_gradients)
        if run._results:
            when_loaded(_TORCH_IS_WHOLE, self._watch_results)
            queue_puts.reporters[:] = [partial(reporter.report, reporting.FOUND)]
            if not run._forked:
                pickling_errors.watch_fresh_process()
        self._begun = probes.begin(run._asked, process=True)
        self._standing = probes.stateful(self._begun)
        if self._standing:
            probes.changed[:] = [self._look]
        if self._standing or run._gradients:
            sends(self._package, self._sent).apply()

    def _watch_gradients(self) -> None:
        self._gradients = import_module(_GRADIENTS).Watched(self._items, self._reporter)

    def _watch_results(self) -> None:
        function = self._items[0][0]
        results: Any = import_module(_RESULTS)
        results.watch(self._package, function, lambda sent: self._reporter.report(_SENT, [sent]))
        import_module(_MODULES).watch(function, partial(self._reporter.report, "gg112"))

    def _sent(self, item: Any) -> None:
        for _, module in self._standing:
            attempt(module.on_sent, item)
        if self._gradients is not None:
            self._gradients.sent(item)
        self._look()

    def _look(self) -> None:
        """Tell how things stand, where that has changed."""
        for name, module in self._standing:
            self._reporter.report_state(name, partial(module.current_note, self._items))

    def end(self, error: BaseException | None) -> None:
        """Tell what there is to tell at the end, where the process has raised `error`, if any."""
        self._look()
        if self._gradients is not None:
            self._gradients.tell()
        if isinstance(error, SystemExit):
            error = error.__context__
        names = {name for name, _ in self._standing}
        begun = [one for one in self._begun if one[0] not in names]
        for name, note in probes.end(begun, self._items, None, error, process=True):
            started = probes.starts(name)
            if started and not (name in _RANKS_SHARE and is_rank(self._inner)):
                self._reporter.report(name, note)

    def tell_found(self, own: Collector) -> None:
        """Tell what was found in this process."""
        collector.leave(own)
        found = own.findings
        if found:
            self._reporter.report(reporting.FOUND, found)
