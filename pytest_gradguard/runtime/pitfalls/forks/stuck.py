"""Ends forked workers that wait for threads of their parent, with an error for the task.

TensorFlow's threads exist only in the parent. A worker can compute small operations in its own
thread; an operation for those threads never ends, and nothing in the process can end the wait. So a
thread of ours watches the tasks: if their thread stays in one wait inside TensorFlow and no other
thread is about to act, the task is answered with an error, and the process ends as if killed.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from pytest_gradguard import pitfalls
from pytest_gradguard.messages import ForkDeadlockError
from pytest_gradguard.runtime.kernel import answering, callsite, frameworks, registry, worker
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.pitfalls.forks import native_threads, openmp
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang

_PAUSE = 0.2
_CERTAIN = 1.0
"""Seconds without progress, if nothing can end the wait."""
_ALONE = 2.0
"""Seconds, if the wait times out now and then, and no thread exists that could end it."""
_LIKELY = 5.0
"""Seconds, if this system does not report what threads wait for."""
_UNLIKELY = 30.0
"""Seconds, if another thread might end the wait, and has done nothing so far."""
_NOTHING = 0.002
"""Seconds of CPU time that are no work: two clocks are read one after the other."""


Answer = Callable[[Hang, BaseException], bool]


class Watcher:
    """Watches the tasks of one batch.

    Args:
        token: the number of the call.
        place: the line of the call, for the error.
        answer: handles the hang and the error; by default they go to the pool that runs the tasks.
        case: which advice fits its workers (`Pitfall.cases`).
    """

    def __init__(
        self, token: int, place: str, answer: Answer | None = None, case: str = ""
    ) -> None:
        self.token = token
        self._case = case
        self.place = place
        self._answer = answer
        self.thread = threading.get_ident()
        self.native = threading.get_native_id()
        self._last: object = None
        self._done = 0.0
        self._since = time.monotonic()
        self._pitfall = pitfalls.get("GG303")  # imported here: the other thread may be importing

    def stop(self) -> None:
        """Stop: the tasks have ended."""
        global _watcher
        if _watcher is self:
            _watcher = None

    def look(self) -> None:
        """Check once; end the process if its tasks never will."""
        frame = sys._current_frames().get(self.thread)
        waiting = native_threads.waiting(self.native)
        now = (id(frame), frame and frame.f_lasti, waiting)
        done = _work_done()
        if frame is None or now != self._last or done - self._done > _NOTHING:
            self._last = now
            self._done = done
            self._since = time.monotonic()
            return
        still = time.monotonic() - self._since
        if still < _CERTAIN:
            return
        framework = _framework(frame, waiting)
        if framework is not None and still >= self._patience(frame, waiting):
            self._end(frame, framework)

    def _patience(self, frame: FrameType, waiting: native_threads.Waiting | None) -> float:
        if frame.f_code.co_name == "quick_execute" and waiting is not None:
            # A tf.function: all of its operations need the missing threads, whatever others do
            # do (those of tf.data sleep for minutes).
            return _CERTAIN
        in_python = set(sys._current_frames()) - {self.thread, threading.get_ident()}
        if not native_threads.readable():
            return _UNLIKELY if in_python else _LIKELY
        others = native_threads.ids() - {self.native, threading.get_native_id()}
        waits = [waiting, *(native_threads.waiting(other) for other in others)]
        hopeless = all(wait is not None and wait.for_a_thread for wait in waits)
        if hopeless:
            return _CERTAIN
        alone = not in_python and not native_threads.foreign()
        # JAX checks again every few seconds.
        return _ALONE if alone and waiting is not None and waiting.on_a_lock else _UNLIKELY

    def _end(self, frame: FrameType, framework: str) -> None:
        task, where = _task_in(frame)
        path, line = (None, None) if where is None else (callsite.file_of(where), where.f_lineno)
        hang = Hang(framework, task, path, line)
        error = ForkDeadlockError(self._text(hang))
        if self._answer is None:
            worker.send_with(error, self.token, [("gg303", hang)])
            answered = answering.answer(frame, error)
        else:
            answered = self._answer(hang, error)
        if answered:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:
                    pass
            # A worker that has answered exits with 0: torch's loaders raise an error for any other
            # code, wherever the program is by then.
            os._exit(0 if self._answer is None else 1)
        self.stop()  # nobody to answer to: not a pool that the guard knows

    def _text(self, hang: Hang) -> str:
        name = frameworks.named(hang.framework).title
        where = f" at {hang.path}:{hang.line}" if hang.path else ""
        call = f" of the call at {self.place}" if self.place else ""
        return (
            f"{self._pitfall.code} {self._pitfall.name}: `{hang.task.name}` would wait forever"
            f"{where}. It runs in a forked worker{call}, without the threads that {name} had "
            f"started before the fork. {self._pitfall.advice_for(self._case)}"
        )


def _work_done() -> float:
    """Seconds of CPU time used by all threads but this one."""
    return time.process_time() - time.thread_time()


def _framework(frame: FrameType, waiting: native_threads.Waiting | None) -> str | None:
    """The framework whose threads the Python code of `frame` waits for."""
    known = frameworks.waiting_in(frame.f_code.co_filename)
    known = known or frameworks.waiting_by(_method_in(frame))
    if known is not None:
        return known.name
    library = openmp.loaded()
    if library is not None and waiting is not None and library.holds(waiting.place):
        return "torch"
    return None


def _method_in(frame: FrameType) -> str:
    """The C method that `frame` is calling; empty if none."""
    method = ""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            break
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            method = str(instruction.argval)
    return method


def _task_in(frame: FrameType) -> tuple[Task, FrameType | None]:
    """The task that runs in the innermost `frame`, and the user's innermost frame in it."""
    outermost = frame
    innermost: FrameType | None = None
    current: FrameType | None = frame
    while current is not None and current.f_globals.get("__name__") not in registry.runners:
        if callsite.is_users(current):
            innermost = innermost or current
            outermost = current
        elif innermost is None:
            outermost = current
        current = current.f_back
    code = outermost.f_code
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    return Task(name, callsite.file_of(outermost), code.co_firstlineno), innermost


_watcher: Watcher | None = None
_process: int | None = None
"""The process in which our thread runs: a forked child has none."""


def watch(token: int, place: str, answer: Answer | None = None, case: str = "") -> Watcher:
    """Watch the tasks of a batch that run in the calling thread."""
    global _watcher, _process
    _watcher = watcher = Watcher(token, place, answer, case)
    if _process != os.getpid():
        _process = os.getpid()
        threading.Thread(target=_look_on, name="gradguard-forked", daemon=True).start()
    return watcher


def _look_on() -> None:
    while True:
        time.sleep(_PAUSE)
        watcher = _watcher
        if watcher is not None:
            try:
                watcher.look()
            except Exception as error:
                watcher.stop()
                fault(error)
