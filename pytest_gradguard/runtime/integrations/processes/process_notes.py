"""A process that the program starts itself tells what the probes note of its function there.

It is looked at as a task is, from its first line to its last, and writes to a pipe as it ends. What
it sends with a graph meanwhile, where nothing refuses that, it tells as it is pickled. A forked one
has the guard, and tells what that found of its own calls, too.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from typing import Any

from pytest_gradguard.daemon_process import through
from pytest_gradguard.findings import Finding
from pytest_gradguard.rank_process import is_rank
from pytest_gradguard.runtime.kernel import (
    calls,
    collector,
    pipes,
    plain_data,
    probes,
    watching,
)
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.dispatch.process_start import (
    hearing,
    package_of,
    ships_gradients,
    when_loaded,
)
from pytest_gradguard.runtime.kernel.faults import attempt, fault, hidden_frame
from pytest_gradguard.runtime.kernel.pipes import Listeners
from pytest_gradguard.runtime.pitfalls.lost import gg103, pickling_errors, queue_puts

_TORCH = "torch.nn.parameter"
_TORCH_IS_WHOLE = "torch.optim.optimizer"
"""A module that torch imports late."""
_RESULTS = "pytest_gradguard.runtime.pitfalls.lost.process_results"  # it needs torch
_MANY = 64
"""How many processes are listened to at a time."""
_SENT = "result"
"""The name of a note of what was sent with a graph; the others are those of probes."""
_FOUND = "found"
"""The same of a finding of the calls that the process makes itself."""
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
    results = _TORCH in sys.modules and not call.within_autograd
    if not (asked or results):
        return None
    if results and forked:
        attempt(import_module, _RESULTS)  # once, and not in each process
    return hearing(
        process,
        lambda inner, write: Run(process, inner, write, task, asked, results, call, forked),
        lambda read: _expect(call, read, results),
    )


def _expect(call: Call, read: Any, results: bool) -> None:
    _told.add(read, tuple[str, str], functools.partial(_take, call))
    call.collector.ask_first(_told.hear)
    if results:
        from pytest_gradguard.runtime.pitfalls.lost import arriving

        arriving.expect(_told.hear)


def _take(call: Call, told: list[tuple[str, str]], ended: bool) -> None:
    """Take what a process that `call` has started has told."""
    for name, text in told:
        with suppress(ValueError):  # it is none of the guard's
            _take_one(call, name, text)


def _take_one(call: Call, name: str, text: str) -> None:
    if name == _SENT:
        from pytest_gradguard.runtime.pitfalls.lost import arriving

        arriving.told(call, plain_data.loads(text, gg103.Sent))
    elif name == _FOUND:
        for finding in plain_data.loads(text, list[Finding]):
            if finding.code not in call.dropped:
                call.collector.add(calls.placed(call, finding))
    else:
        probes.hear(call, probes.read([(name, text)]))


_told = Listeners(_MANY)
hear = _told.hear
"""Take what the processes have told."""
watching.at_end(_told.close)


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
        call: Call | None = None,
        forked: bool = False,
    ) -> None:
        self._process = process
        self._inner = inner
        self._write = write
        self._task = task
        self._asked = asked
        self._results = results
        self._call = call
        self._forked = forked

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments of the process are pickled by now: it is the attribute set last.
        package = package_of(self._process)
        shipped = attempt(ships_gradients, self._call) or attempt(
            queue_puts.may_receive, package, self._task
        )
        if not (self._asked or shipped):
            inner = self._inner
            return (operator.getitem, ((inner,), 0)) if inner else (getattr, (self._process, "run"))
        results = self._results and bool(shipped)
        return Run, (self._process, self._inner, self._write, self._task, self._asked, results)

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        run = work or type(self._process).run.__get__(self._process)
        run = attempt(through, run, self._process, self._inner, instead=run)
        begun = attempt(self._begin, instead=())
        own = attempt(self._gathering) if self._forked else None
        error: BaseException | None = None
        try:
            with hidden_frame:
                return run()
        except BaseException as raised:
            error = raised
            raise
        finally:
            attempt(self._end, begun, error)
            if own is not None:
                attempt(self._tell_found, own)

    def _begin(self) -> Any:
        if self._results:
            when_loaded(_TORCH_IS_WHOLE, self._watch_results)
            queue_puts.tell[:] = [functools.partial(self._tell, _FOUND)]
            if not self._forked:
                pickling_errors.watch_fresh_process()
        return probes.begin(self._asked, process=True)

    def _watch_results(self) -> None:
        results: Any = import_module(_RESULTS)
        tell = functools.partial(self._tell, _SENT)
        results.watch(package_of(self._process), self._task[0], tell)

    def _end(self, begun: Any, error: BaseException | None) -> None:
        if isinstance(error, SystemExit):
            error = None
        for name, note in probes.end(begun, [self._task], None, error, process=True):
            started = probes.starts(name)
            if started and not (name in _RANKS_SHARE and is_rank(self._inner)):
                self._tell(name, note)

    def _gathering(self) -> Collector:
        """Where findings of this forked process's own calls gather from now on.

        What was found before the fork stays with the parent's.
        """
        outer = collector.innermost()
        ignore = frozenset() if self._call is None else self._call.dropped
        own = Collector(ignore=ignore, announce=None if outer is None else outer.announce)
        collector.enter(own)
        return own

    def _tell_found(self, own: Collector) -> None:
        collector.leave(own)
        found = own.findings
        if found:
            self._tell(_FOUND, found)

    def _tell(self, name: str, note: Any) -> None:
        try:
            pipes.tell(self._write.fileno(), (name, plain_data.dumps(note)))
        except OSError as error:  # the program has closed what it knows nothing of
            fault(error)
