"""GG201: a task, or an initializer, initialises CUDA in a worker process, or tries to.

`cuda` records every attempt in a process; attempts of TensorFlow, CuPy and a torch built without
CUDA are also found from the error that ends the task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls import cuda
from pytest_gradguard.runtime.pitfalls.cuda import Attempt, errors

CODE = "GG201"
PROBES = (Probe("gg201", __name__, by_error=True),)


class Used(NamedTuple):
    """The uses of CUDA by the tasks of one batch, picklable.

    Attributes:
        process: the worker's process id.
        task: the function that ran.
        attempts: where they initialised CUDA, or tried to.
        context_bytes: the GPU memory of its contexts, once it is measured.
    """

    process: int
    task: Task
    attempts: tuple[Attempt, ...]
    context_bytes: int | None = None


# -- in the parent -------------------------------------------------------------------------------


class Evidence(TaskEvidence):
    """Worker processes of one call that need CUDA."""

    code = CODE

    def message(self) -> str:
        workers = self.details["workers"]
        many = "a worker process" if workers == 1 else f"{workers} worker processes"
        failed = self.details["failed"]
        if failed is None:
            memory = _memory(self.details.get("context_bytes", ()), workers)
            each = "it" if workers == 1 else "each"
            return (
                f"`{self.first.name}` initialises CUDA in {many}: {each} creates its own context, "
                f"which takes {memory} and time to start."
            )
        return (
            f"`{self.first.name}` needs CUDA in {many}, where it could not be initialised "
            f"({failed})."
        )


def on_note(call: Any, note: Used) -> None:
    """Report the uses of CUDA by a batch in its worker."""
    evidence = Evidence.of(call, framework=note.attempts[0].framework, device="cuda")
    if evidence is None:
        return
    for attempt in dict.fromkeys(note.attempts):
        task = note.task
        if not attempt.in_task:
            task = Task(attempt.function or "an initializer", attempt.path, attempt.line)
        count_attempt(evidence, note.process, task, attempt)
    if note.context_bytes is not None:
        evidence.details.setdefault("context_bytes", []).append(note.context_bytes)


def count_attempt(evidence: TaskEvidence, process: int, task: Task, attempt: Attempt) -> None:
    """Count one attempt of `task` in a process."""
    tried = "initialises CUDA here" if attempt.failed is None else "needs CUDA here"
    evidence.add(task, f"`{task.name}` {tried}", attempt.path, attempt.line)
    workers = evidence.details.setdefault("processes", [])
    if process not in workers:
        workers.append(process)
    evidence.details["workers"] = len(workers)
    evidence.details.setdefault("failed", attempt.failed)


# -- in the worker -------------------------------------------------------------------------------


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> Used | None:
    """Return the uses of CUDA by a batch, in a worker where CUDA was needed."""
    attempts = list(cuda.take())
    if error is not None and not any(attempt.failed for attempt in attempts):
        for attempt in errors.attempt_behind(error):
            cuda.needed(attempt.framework)
            attempts.append(attempt)
    if not attempts:
        return None
    context_bytes = None
    if any(attempt.failed is None for attempt in attempts):
        context_bytes = _context_bytes()
    return Used(os.getpid(), task_of(*items[-1]), tuple(attempts), context_bytes)


_ERRORS = frozenset(("cupy_backends.cuda.api.runtime", "tensorflow.python.framework.errors_impl"))
"""The modules of the error classes that may show an attempt."""


def activated_by(error: BaseException) -> bool:
    """Whether the error of a task may show an attempt not recorded otherwise."""
    kind = type(error).__module__
    if kind in _ERRORS:
        return True
    return kind in ("builtins", "torch") and "torch.cuda" in sys.modules and errors.no_cuda(error)


def _context_bytes() -> int | None:
    """The memory of this worker's contexts; errors of frameworks and drivers are ignored."""
    try:
        from pytest_gradguard.runtime.pitfalls.cuda import contexts

        return contexts.measured()
    except Exception:
        return None


# -- messages -------------------------------------------------------------------------------------


def _memory(measured: Sequence[int], workers: int) -> str:
    """The memory of the contexts, as far as the workers measured it."""
    if not measured:
        return "GPU memory"
    least, most = _size(min(measured)), _size(max(measured))
    memory = f"about {most}" if least == most else f"{least} to {most}"
    memory += " of GPU memory"
    if len(measured) < workers:
        return f"{memory} (measured in {len(measured)} of them)"
    return memory if workers == 1 else f"{memory} ({_size(sum(measured))} in all)"


def _size(count: int) -> str:
    """A rounded number of bytes, with its unit."""
    mib = count / 2**20
    if mib >= 1024:
        return f"{mib / 1024:.1f} GiB"
    return f"{round(mib, -1) or 10:.0f} MiB"
