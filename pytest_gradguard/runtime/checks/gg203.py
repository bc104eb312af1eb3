"""GG203: workers are forked while CUDA is initialised in the parent."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime import cuda
from pytest_gradguard.runtime.checks import CUPY, TENSORFLOW, TORCH, Probe, forked_for_tasks
from pytest_gradguard.runtime.checks.gg201 import Used, count_attempt
from pytest_gradguard.runtime.cuda import Attempt
from pytest_gradguard.runtime.evidence import TaskEvidence
from pytest_gradguard.runtime.fork_safety import forks
from pytest_gradguard.runtime.tasks import Task, task_of

CODE = "GG203"
PROBES = (Probe("gg203", __name__, asks=(TORCH, TENSORFLOW, CUPY), ships=forked_for_tasks),)


class Evidence(TaskEvidence):
    """Forked workers, or processes of the program's own, of one line."""

    code = CODE

    def hear(self, told: tuple[int, Task, Attempt]) -> None:
        process, task, attempt = told
        self.details["framework"] = attempt.framework
        count_attempt(self, process, task, attempt)

    def message(self) -> str:
        return (
            "This process has initialised CUDA, and its workers are forked from it: CUDA cannot be "
            f"initialised again in a forked worker, so everything that `{self.first.name}` does "
            "with CUDA fails."
        )


def heard(call: Any, note: Used) -> None:
    """Report a worker of a data loader that was forked while CUDA was up, and needs it itself."""
    evidence = Evidence.of(call, framework=note.attempts[0].framework, device="cuda")
    if evidence is not None:
        for attempt in dict.fromkeys(note.attempts):
            evidence.hear((note.process, note.task, attempt))


def ship(call: Any, items: Any) -> None:
    """Report a fork while CUDA is up here."""
    if cuda.is_up() and any(one.pid not in cuda.earlier for one in forks.forked_workers(call)):
        evidence = Evidence.of(call, framework=next(iter(cuda.up), "torch"), device="cuda")
        if evidence is not None and not evidence.count:
            task = task_of(items[0][0])
            evidence.add(task, f"`{task.name}` runs in a forked worker")
