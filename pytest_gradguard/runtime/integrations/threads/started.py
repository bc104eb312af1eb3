"""A thread lacks the torch modes (GG301) and the tapes (GG105) of the thread that starts it."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.kernel import probes, running
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.checks import TORCH
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import carried, without_this_frame
from pytest_gradguard.runtime.kernel.registry import THREADS
from pytest_gradguard.runtime.pitfalls.modes import gg301
from pytest_gradguard.runtime.pitfalls.tapes import gg105, tape

Task = tuple[Any, Any, Any]
"""A function, its arguments and its keywords."""
_ASKED = (gg301.MODES, *(probe.name for probe in gg105.PROBES))


def look_at(thread: Any) -> Run | None:
    """Have `thread`, which is about to start, run under watch where it lacks something."""
    if not lacks_something(thread):
        return None
    call = calling.begin(THREADS)
    if call is None:
        return None
    task = _task_of(thread)
    asked = {name: call.asked[name] for name in _ASKED if name in call.asked}
    for name, ship in probes.questions(call).ships:
        if name in asked:
            asked[name] = ship(call, [task])
    return Run(thread, call, task, asked) if asked else None


def lacks_something(thread: Any) -> bool:
    """Whether `thread`, which is about to start, may lack what holds in this one."""
    startable = getattr(thread, "_initialized", False) and not thread._started.is_set()
    return startable and _holds_something() and not _runs_a_batch()


def _holds_something() -> bool:
    if TORCH in sys.modules:
        from pytest_gradguard.runtime.pitfalls.modes import torch_modes

        if torch_modes.may_be_in_force():
            return True
    return tape.may_record()


def _runs_a_batch() -> bool:
    """Whether a backend of the program's starts the thread, for tasks that joblib watches."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "joblib.parallel":
        frame = frame.f_back
    return frame is not None


class Run:
    """In place of the method `run` of a thread, until that is called.

    Args:
        thread: the program's thread.
        call: the call that starts it.
        task: its function, and its arguments.
        asked: what the probes asked.
    """

    def __init__(self, thread: Any, call: Call, task: Task, asked: dict[str, Any]) -> None:
        self._thread = thread
        self._before = vars(thread).get("run")
        self._call = call
        self._task = task
        self._asked = asked
        thread.run = self
        thread._gradguard_call = call

    def leave(self) -> None:
        """Leave the thread as it was."""
        if self._before is None:
            del self._thread.run
        else:
            self._thread.run = self._before

    def __call__(self) -> None:
        thread = self._thread
        self.leave()
        try:
            carried(thread.run, running.in_thread, self._call, [self._task], self._asked)
        except BaseException as error:
            without_this_frame(error)
            raise


def _task_of(thread: Any) -> Task:
    """The program's function that `thread` runs, and its arguments."""
    run = type(thread).run
    if run is threading.Timer.run:
        return thread.function, thread.args, thread.kwargs
    if run is threading.Thread.run:
        return thread._target, thread._args, thread._kwargs
    return run, (thread,), {}
