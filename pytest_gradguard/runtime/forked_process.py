"""A process that the program forks itself: what it inherits, and how it tells of a hang.

A task of a pool sends notes along with its result. A process has none, so it writes to a pipe,
which is read when findings are asked for. The pipe is made only where PyTorch's compute threads
were ended for the fork.
"""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime import openmp
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.looks import forked
from pytest_gradguard.runtime.looks.forked import Hang
from pytest_gradguard.runtime.noticed import Noticed
from pytest_gradguard.runtime.tasks import task_of

_ENOUGH = 65_536


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
        """In the parent, where its threads have been ended for the fork."""
        self._pipe = os.pipe()

    def in_parent(self) -> None:
        """In the parent, after the fork."""
        if self._pipe is None:
            return
        read, write = self._pipe
        os.close(write)
        os.set_blocking(read, False)
        call = self._call
        key = ("GG303", call.site and call.site.key, call.backend)
        evidence = call.collector.evidence(key, lambda: Awaited(call))
        if "GG303" not in call.dropped and isinstance(evidence, Awaited):
            call.note(evidence)
            evidence.wait_for(read)
        else:
            os.close(read)

    def in_child(self) -> None:
        """In the forked process: have it tell, when its function has ended, whether it computed."""
        if self._pipe is None:
            return
        read, write = self._pipe
        os.close(read)
        self._process.run = _telling(self._process, self._process.run, write)


def _telling(process: Any, original: Callable[[], Any], write: int) -> Callable[[], Any]:
    def run() -> Any:
        function = getattr(process, "_target", None) or type(process).run  # the end forgets it
        try:
            return original()
        except BaseException as error:
            without_this_frame(error)
            raise
        finally:
            try:
                if openmp.end_pool():
                    os.write(write, pickle.dumps(Hang("torch", task_of(function))))
                os.close(write)
            except Exception as mistake:
                fault(mistake)

    return run


class Awaited(Noticed):
    """GG303 of processes that were started at one place, as soon as one of them has told."""

    def __init__(self, call: Call) -> None:
        super().__init__("GG303", call, forked.message, {"framework": "torch"})
        self._pipes: dict[int, Any] = {}

    def wait_for(self, pipe: int) -> None:
        """Look, from now on, whether something comes out of `pipe`."""
        self._pipes[pipe] = weakref.finalize(self, os.close, pipe)
        self._pipes[pipe].atexit = False  # findings are asked for at the very end

    def build(self) -> Any:
        for pipe, close in list(self._pipes.items()):
            try:
                told = os.read(pipe, _ENOUGH)
            except BlockingIOError:
                continue
            del self._pipes[pipe]
            close()
            if told:
                forked.add(self, pickle.loads(told))
        return super().build()
