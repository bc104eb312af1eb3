"""GG204: a task changes the visible devices in a worker that has already initialised CUDA."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls import cuda

CODE = "GG204"
PROBES = (Probe("gg204", __name__),)


class Changed(NamedTuple):
    """A task's change of ``CUDA_VISIBLE_DEVICES``, picklable.

    Attributes:
        task: the function that ran.
        before: its value when CUDA was initialised.
        after: its value now.
        framework: the framework that first needed CUDA in that worker.
    """

    task: Task
    before: str | None
    after: str | None
    framework: str


class Evidence(TaskEvidence):
    """Tasks of one call that changed the visible devices."""

    code = CODE

    def message(self) -> str:
        before, after = self.details["before"], self.details["after"]
        return (
            f"`{self.first.name}` changes `{cuda.VARIABLE}` from {before!r} to {after!r} in a "
            "worker that has already initialised CUDA: CUDA reads the variable only once, so the "
            "change has no effect in this worker."
        )


def on_note(call: Any, note: Changed) -> None:
    """Report a task that changed the visible devices."""
    evidence = Evidence.of(call, framework=note.framework, device="cuda")
    if evidence is not None:
        evidence.case = note.framework
        evidence.details.update({"before": note.before, "after": note.after})
        evidence.add(note.task, f"`{note.task.name}` sets `{cuda.VARIABLE}`")


_seen: list[str | None] = dropped_at_end([])
"""The variable's value after the last tasks of this worker, once CUDA was needed."""


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> Changed | None:
    """Return a change of the variable by a batch, in a worker where CUDA was needed."""
    if not cuda.state.first_need:
        return None
    before, framework = cuda.state.first_need[0]
    last = _seen[0] if _seen else before
    _seen[:] = [os.environ.get(cuda.VARIABLE)]
    if _seen[0] == last:
        return None
    return Changed(task_of(*items[-1]), before, _seen[0], framework)
