"""Torch's modes of the thread that starts another one, which that one does not have (GG301)."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.kernel import running
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.faults import carried, without_this_frame
from pytest_gradguard.runtime.kernel.registry import THREADS
from pytest_gradguard.runtime.pitfalls.modes import gg301, torch_modes


def look_at(thread: Any) -> Run | None:
    """Have `thread`, which is about to start, run under watch where modes are in force here."""
    if not needs_modes(thread):
        return None
    call = calling.begin(THREADS)
    asked = None if call is None else call.asked.get(gg301.MODES)
    return None if call is None or asked is None else Run(thread, call, {gg301.MODES: asked})


def needs_modes(thread: Any) -> bool:
    """Whether `thread`, which is about to start, may lack modes that are in force here."""
    startable = getattr(thread, "_initialized", False) and not thread._started.is_set()
    return startable and torch_modes.may_be_in_force() and not _runs_a_batch()


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
        asked: what the probes asked.
    """

    def __init__(self, thread: Any, call: Call, asked: dict[str, Any]) -> None:
        self._thread = thread
        self._before = vars(thread).get("run")
        self._call = call
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
        task: tuple[Any, tuple[()], dict[str, Any]] = (_function_of(thread), (), {})
        try:
            carried(thread.run, running.in_thread, self._call, [task], self._asked)
        except BaseException as error:
            without_this_frame(error)
            raise


def _function_of(thread: Any) -> Any:
    """The program's function that `thread` runs."""
    run = type(thread).run
    if run is threading.Timer.run:
        return thread.function
    return thread._target if run is threading.Thread.run else run
