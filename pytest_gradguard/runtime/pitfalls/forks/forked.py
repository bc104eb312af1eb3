"""GG303: tasks in forked workers that would wait forever for compute threads of the parent.

PyTorch's threads were ended at the fork (`forks`): a task that starts some is one that would have
hung, and ends well under the guard. With TensorFlow nothing but the wait itself can be seen; it is
turned into an error (`stuck`).
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pytest_gradguard.runtime.kernel.dispatch.telling import Teller
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.pitfalls.forks import forks, gg303, openmp
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang


def ship(call: Any, items: Any) -> tuple[int, str, str] | None:
    """The call's number, its place and the case of its advice, for the worker to name."""
    return (call.token, _place(call), call.case(gg303.CODE)) if forks.bequeathed else None


def start(call: Any, task: Any, forked: bool) -> tuple[int, str, str] | None:
    """The same for a process of the program's own, which is no call's worker: its number is 0."""
    return (0, _place(call), "multiprocessing") if forked and forks.may_hang() else None


def _place(call: Any) -> str:
    return "" if call.site is None else f"{call.site.path}:{call.site.line}"


_told: set[int] = dropped_at_end(set())


def begin(asked: tuple[int, str, str] | None, process: bool) -> After | None:
    """Begin to look at the tasks of a batch in a forked process."""
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
        if inherited.torch and token not in _told and openmp.computed():
            _told.add(token)
            return Hang("torch", task_of(*items[-1]))
        return None

    return after


def _end(hang: Hang, error: BaseException) -> bool:
    """Take that this process waits forever: it ends as one does that raises `error`."""
    teller = Teller.here
    if teller is None:
        return False
    teller.tell("gg303", hang)
    print(f"Process {teller.process.name}:", file=sys.stderr)
    traceback.print_exception(error)
    return True


def heard(call: Any, note: Hang) -> None:
    """Report, in the parent, a task that hangs."""
    evidence = gg303.Evidence.of(call)
    if evidence is not None:
        evidence.hear(note)
