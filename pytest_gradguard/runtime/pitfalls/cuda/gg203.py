"""GG203: workers are forked from a process after which CUDA cannot be initialised in them.

If the parent has initialised CUDA, the fork itself is reported. If it has only started the driver,
the worker in which CUDA fails reports it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pytest_gradguard.runtime.kernel.checks import CUPY, TENSORFLOW, TORCH, Probe, forked_for_tasks
from pytest_gradguard.runtime.kernel.dispatch import children
from pytest_gradguard.runtime.kernel.dispatch.reporting import Reporter
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls import cuda
from pytest_gradguard.runtime.pitfalls.cuda import Attempt, errors
from pytest_gradguard.runtime.pitfalls.cuda.gg201 import Used, count_attempt

CODE = "GG203"
PROBES = (
    Probe(
        *("gg203", __name__),
        asks=(TORCH, TENSORFLOW, CUPY),
        ships=forked_for_tasks,
        by_error=True,
        starts=True,
    ),
)


_BEGINS = {
    "use": "this process initialises CUDA here",
    "question": "the question for a GPU starts the driver in this process",
    "backward": "the first backward pass starts the driver in this process",
}


class Evidence(TaskEvidence):
    """Forked workers, or processes that the program forked, of one line."""

    code = CODE
    only_driver = False
    """Whether the parent had only started the driver."""

    def begin(self) -> None:
        """Add the line where this process started using CUDA as the first step, if known."""
        wanted = ("question", "backward") if self.only_driver else ("use",)
        if not self.count:
            start = cuda.first_start(*wanted)
            if start is not None:
                self.add_step(_BEGINS[start.by], start.path, start.line, "parent")

    def add_attempt(self, process: int, task: Task, attempt: Attempt) -> None:
        """Count one attempt of `task` in a worker process."""
        self.only_driver = self.only_driver or attempt.by_fork
        self.begin()
        self.details["framework"] = attempt.framework
        count_attempt(self, process, task, attempt)

    def message(self) -> str:
        if self.only_driver:
            return (
                "This process has started the CUDA driver, as `torch.cuda.is_available()` and a "
                "backward pass do, and its workers are forked from it: CUDA cannot be initialised "
                f"in them, so `{self.first.name}` fails ({self.details['failed']})."
            )
        return (
            "This process has initialised CUDA, and its workers are forked from it: CUDA cannot be "
            f"initialised again in a forked worker, so everything that `{self.first.name}` does "
            "with CUDA fails."
        )


def on_note(call: Any, note: Used) -> None:
    """Report a worker that needs CUDA, which the fork has made unusable there."""
    evidence = Evidence.of(call, framework=note.attempts[0].framework, device="cuda")
    if evidence is not None:
        for attempt in dict.fromkeys(note.attempts):
            evidence.add_attempt(note.process, note.task, attempt)


def ship(call: Any, items: Any) -> None:
    """Report a fork while CUDA is initialised in this process."""
    if cuda.is_up() and any(
        one.pid not in cuda.state.earlier for one in children.forked_workers(call)
    ):
        evidence = Evidence.of(call, framework=next(iter(cuda.up), "torch"), device="cuda")
        if evidence is not None and not evidence.count:
            task = task_of(*items[0])
            evidence.begin()
            evidence.add(task, f"`{task.name}` runs in a forked worker")


def start(call: Any, task: Any, forked: bool) -> tuple[bool, Task] | None:
    """Return, as a process is forked that may use GPUs, whether CUDA is up and what it runs.

    Processes that the program spawns itself are not reported: one process for each GPU is the usual
    way to share GPUs (GG201 covers the workers of pools).
    """
    is_up = cuda.is_up()
    return (is_up, task_of(task[0])) if forked and (is_up or _has_gpus()) else None


def _has_gpus() -> bool:
    """Whether the loaded torch can use GPUs: this process may have started the driver."""
    return hasattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_getDeviceCount")


# -- in a process that the program started --------------------------------------------------------


def begin(asked: tuple[bool, Task] | None, process: bool) -> After:
    """Report, as soon as CUDA fails in this forked process, that it does."""
    if asked is None:  # a pool worker: activated by its tasks
        return inspect_batch
    was_up, task = asked
    reported = []

    def report(made: Attempt) -> None:
        if Reporter.here is not None and (was_up or made.by_fork):
            reported.append(made)
            Reporter.here.report("gg203", Used(os.getpid(), task, (made,)))

    def after(items: Any, results: Any, error: BaseException | None) -> None:
        if error is not None and not reported:  # inherited tensors need no initialisation
            asked = errors.after_fork if was_up else errors.by_fork
            for made in errors.attempt_behind(error, asked):
                report(made)

    cuda.listen(report)
    return after


# -- in the worker -------------------------------------------------------------------------------


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> Used | None:
    """Return the uses of CUDA by a batch, in a worker where the fork made CUDA fail."""
    lost = cuda.take_lost()
    if error is not None and not lost:
        lost = tuple(errors.attempt_behind(error, errors.by_fork))
    return Used(os.getpid(), task_of(*items[-1]), lost) if lost else None


def activated_by(error: BaseException) -> bool:
    """Whether the error of a task shows an attempt not recorded otherwise."""
    return errors.by_fork(error) is not None
