"""GG303: tasks in forked workers that would wait forever for compute threads of the parent.

PyTorch's threads were ended at the fork (`forks`): a task that starts some would have hung, but
ends normally under the guard. With TensorFlow only the wait itself is observable; `stuck` turns it
into an error.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pytest_gradguard.runtime.kernel.dispatch.reporting import Reporter
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.pitfalls.forks import forks, gg303, openmp
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang


def ship(call: Any, items: Any) -> tuple[int, str, str] | None:
    """Return the call's token, line and advice case, for the worker's reports."""
    return (call.token, _place(call), call.case(gg303.CODE)) if forks.children_inherit else None


def start(call: Any, task: Any, forked: bool) -> tuple[int, str, str] | None:
    """As `ship`, for a process that the program starts, which has no call: its token is 0."""
    return (0, _place(call), "multiprocessing") if forked and forks.may_hang() else None


def _place(call: Any) -> str:
    return "" if call.site is None else f"{call.site.path}:{call.site.line}"


_reported: set[int] = dropped_at_end(set())


def begin(asked: tuple[int, str, str] | None, process: bool) -> After | None:
    """Watch the tasks of a batch in a forked process."""
    inherited = forks.inherited
    if not process or asked is None or inherited is None:
        return None
    token, place, case = asked
    watcher = None
    if inherited.runtime or inherited.torch_kept:
        from pytest_gradguard.runtime.pitfalls.forks import stuck

        watcher = stuck.watch(token, place, None if token else _end, case)

    def after(items: Any, results: Any, error: BaseException | None) -> Hang | None:
        if watcher is not None:
            watcher.stop()
        if inherited.torch and token not in _reported and openmp.computed():
            _reported.add(token)
            return Hang("torch", task_of(*items[-1]))
        return None

    return after


def _end(hang: Hang, error: BaseException) -> bool:
    """Report the hang; the process, which would wait forever, ends as if it raised `error`."""
    reporter = Reporter.here
    if reporter is None:
        return False
    reporter.report("gg303", hang)
    print(f"Process {reporter.process.name}:", file=sys.stderr)
    traceback.print_exception(error)
    return True


def on_note(call: Any, note: Hang) -> None:
    """Report, in the parent, a task that hangs."""
    evidence = gg303.Evidence.of(call)
    if evidence is not None:
        evidence.add_hang(note)
