"""GG204: a task changes the visible devices in a worker that has initialised CUDA already."""

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
    """What a task did to ``CUDA_VISIBLE_DEVICES``, in plain values so that it can be pickled.

    Attributes:
        task: the function that ran.
        before: what it was when CUDA was initialised.
        after: what it is since.
        framework: what needed CUDA first in that worker.
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


def heard(call: Any, note: Changed) -> None:
    """Report a task that changed the visible devices."""
    evidence = Evidence.of(call, framework=note.framework, device="cuda")
    if evidence is not None:
        evidence.case = note.framework
        evidence.details.update({"before": note.before, "after": note.after})
        evidence.add(note.task, f"`{note.task.name}` sets `{cuda.VARIABLE}`")


_seen: list[str | None] = dropped_at_end([])
"""What the variable was in this worker after its last tasks, once CUDA was needed there."""


def roused(items: Any, results: Any, error: BaseException | None) -> Changed | None:
    """Whether the tasks of a batch changed the variable, in a worker where CUDA was needed."""
    if not cuda.state.first_need:
        return None
    before, framework = cuda.state.first_need[0]
    last = _seen[0] if _seen else before
    _seen[:] = [os.environ.get(cuda.VARIABLE)]
    if _seen[0] == last:
        return None
    return Changed(task_of(*items[-1]), before, _seen[0], framework)
