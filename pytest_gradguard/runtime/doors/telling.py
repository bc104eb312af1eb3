"""A process that the program forks itself, while CUDA is up, tells that it needs CUDA: GG203.

A task of a pool sends notes along with its result. A process has none, so it writes to a pipe as
soon as it needs CUDA; the pipe is read when findings are asked for. Nothing is said of CUDA in
other processes of the program's own: one process for each GPU is how GPUs are shared (GG201 is for
the workers of pools).
"""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gradguard.runtime import cuda
from pytest_gradguard.runtime.calls import Call
from pytest_gradguard.runtime.cuda import Attempt
from pytest_gradguard.runtime.faults import fault, without_this_frame
from pytest_gradguard.runtime.looks import cuda as look
from pytest_gradguard.runtime.noticed import Noticed
from pytest_gradguard.runtime.tasks import Task, task_of

_ENOUGH = 65_536
_MANY = 16


@contextmanager
def of_cuda(process: Any, call: Call, function: Any) -> Iterator[None]:
    """A block in which `process` is forked; what it says of CUDA becomes evidence of `call`."""
    if not cuda.is_up() or "run" in vars(process) or "GG203" in call.dropped:
        yield
        return
    read, write = os.pipe()
    task = task_of(function)
    process.run = Run(process, write, task)
    try:
        yield
    finally:
        del process.run
        os.close(write)
        _await(call, read)


def _await(call: Call, read: int) -> None:
    os.set_blocking(read, False)
    key = ("GG203", call.site and call.site.key, call.backend, "process")
    evidence = call.collector.evidence(key, lambda: Awaited(call))
    assert isinstance(evidence, Awaited)
    call.note(evidence)
    evidence.wait_for(read)


class Run:
    """In place of the method `run` of a process."""

    def __init__(self, process: Any, write: int, task: Task) -> None:
        self._process = process
        self._write = write
        self._task = task

    def __call__(self) -> Any:
        try:
            cuda.tell(self._tell)
        except Exception as error:
            fault(error)
        try:
            return type(self._process).run(self._process)
        except BaseException as error:
            without_this_frame(error)
            raise

    def _tell(self, attempt: Attempt) -> None:
        os.write(self._write, pickle.dumps((os.getpid(), self._task, attempt)))


class Awaited(Noticed):
    """What processes that were started at one place did with CUDA, as soon as one has told."""

    def __init__(self, call: Call) -> None:
        about = {"framework": "torch", "device": "cuda", "direction": None}
        super().__init__("GG203", call, look.forked_message, about)
        self._pipes: dict[int, Any] = {}

    def wait_for(self, pipe: int) -> None:
        """Look, from now on, whether something comes out of `pipe`."""
        if len(self._pipes) >= _MANY:
            self._listen()
        self._pipes[pipe] = weakref.finalize(self, os.close, pipe)
        self._pipes[pipe].atexit = False  # findings are asked for at the very end

    def _listen(self) -> None:
        for pipe, close in list(self._pipes.items()):
            try:
                told = os.read(pipe, _ENOUGH)
            except BlockingIOError:
                continue
            del self._pipes[pipe]
            close()
            if told:
                process, task, attempt = pickle.loads(told)
                self.details["framework"] = attempt.framework
                look.tell(self, process, task, attempt)

    def build(self) -> Any:
        """The finding as it stands now."""
        self._listen()
        return super().build()
