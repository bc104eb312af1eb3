"""GG303: tasks in forked workers that would wait forever for compute threads of the parent.

`forks` detects the fork, `stuck` the wait and `forked` the tasks; `autograd_threads` handles the
error that autograd raises instead of waiting.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_gradguard.runtime.kernel import frameworks
from pytest_gradguard.runtime.kernel.checks import Probe, forked
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.pitfalls import cuda

CODE = "GG303"
PROBES = (
    Probe(
        "gg303",
        "pytest_gradguard.runtime.pitfalls.forks.forked",
        asks=frameworks.modules,
        ships=forked,
        starts=True,
    ),
    Probe(
        "gg303_autograd",
        "pytest_gradguard.runtime.pitfalls.forks.autograd_threads",
        by_error=True,
        starts=True,
    ),
)


class Hang(NamedTuple):
    """A task that hangs without the guard, picklable.

    Attributes:
        framework: the framework whose threads it waits for.
        task: the function that ran.
        path, line: the user's line that waited, if known.
        refused: autograd refused to run there, with an error.
    """

    framework: str
    task: Task
    path: str | None = None
    line: int | None = None
    refused: bool = False


class Evidence(TaskEvidence):
    """Tasks of one call that hang without the guard."""

    code = CODE
    refused = False

    def add_hang(self, hang: Hang) -> None:
        """Count one more task that hangs."""
        self.details["framework"] = hang.framework
        self.refused = self.refused or hang.refused
        if hang.refused:
            self._name_first()
            text = f"autograd refuses to run the backward pass of `{hang.task.name}` here"
            self.add(hang.task, text, hang.path, hang.line)
        elif hang.path is not None and hang.line is not None:
            self.add(hang.task, f"`{hang.task.name}` waits here", hang.path, hang.line)
        else:
            self.add(
                hang.task, f"`{hang.task.name}` needs compute threads that only its parent has"
            )

    def _name_first(self) -> None:
        """Add where autograd started its threads in this process as the first step, if known."""
        start = None if self.count else cuda.first_start("backward")
        if start is not None:
            text = "the first backward pass in this process starts autograd's threads"
            self.add_step(text, start.path, start.line, "parent")

    def message(self) -> str:
        name = frameworks.named(self.details["framework"]).title
        if self.refused:
            return (
                f"Autograd's threads were started in this process before it forked the worker that "
                f"runs `{self.first.name}`. They do not exist in the worker, so {name} refuses to "
                "run a backward pass there instead of waiting for them forever."
            )
        if self.details["framework"] == "torch":
            end = "without the guard this program hangs forever here"
        else:
            end = "it would wait for them forever, and was ended"
        return (
            f"{name}'s compute threads were started in this process before it forked the worker "
            f"that runs `{self.first.name}`. The task needs such threads too, but a fork copies "
            f"none: {end}."
        )
