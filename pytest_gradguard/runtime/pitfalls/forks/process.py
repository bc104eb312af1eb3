"""A process that the program forks itself: what it inherits, and how it tells of a hang.

It writes to a pipe (see `pipes`), which is made only where compute threads of a framework were up
at the fork.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import Any

from pytest_gradguard.daemon_process import through
from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt, hidden_frame
from pytest_gradguard.runtime.kernel.pipes import ends_beside, tell
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.pitfalls.forks import gg303, openmp
from pytest_gradguard.runtime.pitfalls.forks.forks import Inherited
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang


class ForkedProcess:
    """One process that is about to be forked.

    Args:
        process: the program's `multiprocessing.Process`.
        call: the call that starts it.
    """

    def __init__(self, process: Any, call: Call) -> None:
        self._process = process
        self._call = call
        self._pipe: tuple[int, int] | None = None

    def before(self) -> None:
        """In the parent, where compute threads are up."""
        self._pipe = ends_beside(os.pipe)

    def in_parent(self) -> None:
        """In the parent, after the fork."""
        if self._pipe is None:
            return
        read, write = self._pipe
        os.close(write)
        evidence = gg303.Evidence.of(self._call)
        if evidence is None:
            os.close(read)
        else:
            evidence.wait_for(read)

    def in_child(self, inherited: Inherited | None) -> None:
        """In the forked process: have its function looked at."""
        if self._pipe is None or inherited is None:
            return
        read, write = self._pipe
        os.close(read)
        site = self._call.site
        place = "" if site is None else f"{site.path}:{site.line}"
        inside = Inside(self._process, inherited, write)
        self._process.run = functools.partial(inside.run, vars(self._process).get("run"), place)


class Inside:
    """What is looked at in the forked process.

    Args:
        process: the process, here.
        inherited: what it has inherited.
        write: the end of the pipe.
    """

    def __init__(self, process: Any, inherited: Inherited, write: int) -> None:
        self._process = process
        self._name = process.name
        self._function = getattr(process, "_target", None) or type(process).run
        self._inherited = inherited
        self._write = write

    def run(self, inner: Any, place: str) -> Any:
        """Run the process, and tell whether it computed with threads of its parent's.

        Args:
            inner: what stands in the place of the process's method `run` already; or None.
            place: where it was started.
        """
        watcher = attempt(self._watcher, place)
        run = type(self._process).run.__get__(self._process)
        run = attempt(through, run, self._process, inner, instead=run)
        try:
            with hidden_frame:
                return run()
        finally:
            if watcher is not None:
                attempt(watcher.stop)
            attempt(self._ended)

    def _watcher(self, place: str) -> Any:
        if not (self._inherited.runtime or self._inherited.torch_kept):
            return None
        from pytest_gradguard.runtime.pitfalls.forks import stuck

        return stuck.watch(0, place, self._ends, "multiprocessing")

    def _ended(self) -> None:
        if self._inherited.torch and openmp.computed():
            self._tell(Hang("torch", task_of(self._function)))
        os.close(self._write)

    def _tell(self, hang: Hang) -> None:
        tell(self._write, hang)

    def _ends(self, hang: Hang, error: BaseException) -> bool:
        """Take that this process waits forever: it ends as one does that raises `error`."""
        self._tell(hang)
        print(f"Process {self._name}:", file=sys.stderr)
        traceback.print_exception(error)
        return True
