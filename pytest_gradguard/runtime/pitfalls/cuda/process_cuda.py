"""A process that the program forks itself, where CUDA fails for that, tells so: GG203.

It writes to a pipe as soon as it does (see `pipes`). Nothing is said of CUDA in other processes
of the program's own: one process for each GPU is how GPUs are shared (GG201 is for the workers of
pools).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gradguard.runtime.kernel.calls import Call
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.pipes import ends_beside, tell
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls import cuda
from pytest_gradguard.runtime.pitfalls.cuda import Attempt, errors, gg203


@contextmanager
def of_cuda(process: Any, call: Call, function: Any) -> Iterator[None]:
    """A block in which `process` is forked; what it says of CUDA becomes evidence of `call`."""
    is_up = cuda.is_up()
    if not (is_up or _has_gpus()) or "run" in vars(process) or "GG203" in call.dropped:
        yield
        return
    ends = ends_beside(os.pipe)
    if ends is None:
        yield
        return
    read, write = ends
    task = task_of(function)
    process.run = Run(process, write, task, is_up)
    try:
        yield
    finally:
        del process.run
        os.close(write)
        evidence = gg203.Evidence.of(call, about="process", framework="torch", device="cuda")
        if evidence is None:
            os.close(read)
        else:
            evidence.wait_for(read)


def _has_gpus() -> bool:
    """Whether a torch is loaded that can use GPUs: this process may have started the driver."""
    return hasattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_getDeviceCount")


class Run:
    """In place of the method `run` of a process."""

    def __init__(self, process: Any, write: int, task: Task, was_up: bool) -> None:
        self._process = process
        self._write = write
        self._task = task
        self._was_up = was_up
        self._has_told = False

    def __call__(self, work: Callable[[], Any] | None = None) -> Any:
        attempt(cuda.tell, self._tell)
        try:
            return type(self._process).run(self._process) if work is None else work()
        except BaseException as error:
            without_this_frame(error)
            attempt(self._tell_of, error)
            raise

    def _tell(self, made: Attempt) -> None:
        if self._was_up or made.by_fork:
            self._has_told = True
            tell(self._write, (os.getpid(), self._task, made))

    def _tell_of(self, error: BaseException) -> None:
        """Tell of the use of a GPU that ended in `error`: what has inherited a tensor on it comes
        to no initialisation."""
        if not self._has_told:
            asked = errors.after_fork if self._was_up else errors.by_fork
            for made in errors.attempt_behind(error, asked):
                self._tell(made)
