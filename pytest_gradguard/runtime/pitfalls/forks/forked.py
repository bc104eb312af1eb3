"""GG303: tasks in forked workers that would wait forever for compute threads of the parent.

PyTorch's threads were ended at the fork (`forks`): a task that starts some is one that would have
hung, and ends well under the guard. With TensorFlow nothing but the wait itself can be seen; it is
turned into an error (`stuck`).
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.pitfalls.forks import forks, gg303, openmp
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang


def ship(call: Any, items: Any) -> tuple[int, str, str] | None:
    """The call's number, its place and the case of its advice, for the worker to name."""
    if not forks.bequeathed:
        return None
    place = "" if call.site is None else f"{call.site.path}:{call.site.line}"
    return call.token, place, call.case(gg303.CODE)


_told: set[int] = dropped_at_end(set())


def begin(asked: tuple[int, str, str] | None, process: bool) -> After | None:
    """Begin to look at the tasks of a batch in a forked worker."""
    inherited = forks.inherited
    if not process or asked is None or inherited is None:
        return None
    token, place, case = asked
    watcher = None
    if inherited.runtime or inherited.torch_kept:
        from pytest_gradguard.runtime.pitfalls.forks import stuck

        watcher = stuck.watch(token, place, case=case)

    def after(items: Any, results: Any, error: BaseException | None) -> Hang | None:
        if watcher is not None:
            watcher.stop()
        if inherited.torch and token not in _told and openmp.computed():
            _told.add(token)
            return Hang("torch", task_of(*items[-1]))
        return None

    return after


def heard(call: Any, note: Hang) -> None:
    """Report, in the parent, a task that hangs."""
    evidence = gg303.Evidence.of(call)
    if evidence is not None:
        evidence.hear(note)
