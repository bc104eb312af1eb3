"""GG206: a task iterates a loader whose workers cannot be started in a worker process.

The loader's iteration fails in the task (`integrations.loader` records it). It is a finding only if
the task fails for that reason: a task that goes on without workers has applied the fix.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from pytest_gradguard import pitfalls
from pytest_gradguard.runtime.kernel import callsite, probes
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence, times
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.cuda.attempts import error_line

CODE = "GG206"
PROBES = (Probe("gg206", __name__),)

_NO_WORKERS = pitfalls.get(CODE).advice.removesuffix(".")
_ADVICE = {
    "loky": f'{_NO_WORKERS}. `multiprocessing_context="fork"` works in loky workers, too.',
    "daemon": f"{_NO_WORKERS}. Or run the tasks in threads, or in a `ProcessPoolExecutor`, whose "
    "workers may start processes.",
    "process": f"{_NO_WORKERS}. Or start the process with `daemon=False`, and join it.",
}
_STANDARD = ("fork", "spawn", "forkserver")
_CHAINED = 10


class Asked(NamedTuple):
    """The requested settings of a loader.

    Attributes:
        workers: how many workers it is to have.
        method: their start method, if it was given a context.
    """

    workers: int
    method: str | None


class Failed(NamedTuple):
    """A loader that could not start its workers, picklable.

    Attributes:
        why: ``"loky"``, ``"daemon"`` (a pool's), or ``"process"`` (a daemon of the program's own).
        asked: its settings.
        error: what it raised.
        task: the function that ran.
        path, line: the user's line that iterates it.
    """

    why: str
    asked: Asked
    error: str
    task: Task | None
    path: str | None
    line: int | None


# -- in the parent ---------------------------------------------------------------------------------


class Evidence(TaskEvidence):
    """Tasks of one call whose loaders could not start their workers."""

    code = CODE
    failed: Failed

    def message(self) -> str:
        failed = self.failed
        count, method = failed.asked
        workers = times(count, "worker")
        if method is not None:
            workers += f' and `multiprocessing_context="{method}"`'
        reason = {
            "loky": "loky's default start method does not work for a DataLoader",
            "daemon": "the workers of this pool are daemons, which cannot start processes",
            "process": "Python does not let daemons start processes",
        }[failed.why]
        alone = failed.why == "process"
        place = "daemon process" if alone else f"{self.backend} worker"
        return (
            f"`{self.first.name}` iterates a DataLoader with {workers} in a {place}, which cannot "
            f"start workers of its own: {reason}. That is why the "
            f"{'process' if alone else 'task'} raised `{failed.error}`."
        )

    def add_failure(self, failed: Failed) -> None:
        if failed.task is not None:
            if not self.count:
                self.failed = failed
                self.advice = _ADVICE[failed.why]
                self.details["num_workers"] = failed.asked.workers
            text = f"`{failed.task.name}` iterates the loader here"
            self.add(failed.task, text, failed.path, failed.line)


def on_note(call: Any, note: Failed) -> None:
    """Report a loader that failed in a worker."""
    evidence = Evidence.of(call, framework="torch", type="DataLoader")
    if evidence is not None:
        evidence.add_failure(note)


# -- in the worker ---------------------------------------------------------------------------------

_failed: list[tuple[BaseException, Failed]] = dropped_at_end([])
"""The loader that failed last, with its error."""


def asked(loader: Any) -> Asked:
    """The settings of `loader`, as its iteration begins."""
    context = getattr(loader, "multiprocessing_context", None)
    return Asked(getattr(loader, "num_workers", 0), getattr(context, "_name", None))


def failed(asked: Asked, error: BaseException) -> None:
    """Record that an iteration ended with `error`, if the kind of process is the reason."""
    why = _why(asked, error)
    if why is not None:
        site = callsite.user_site()
        place = (None, None) if site is None else (site.path, site.line)
        _failed[:] = [(error, Failed(why, asked, error_line(error), None, *place))]
        probes.activate("gg206")


def of_daemon(asked: Asked, error: BaseException) -> Failed | None:
    """The loader that failed in a daemon of the program, if it raised `error`."""
    if _why(asked, error) != "daemon":
        return None
    return Failed("process", asked, error_line(error), None, None, None)


def _why(asked: Asked, error: BaseException) -> str | None:
    """Why no workers could be started in this process; None: another reason."""
    multiprocessing: Any = sys.modules["multiprocessing"]
    if isinstance(error, AssertionError):
        if "daemonic processes are not allowed" in str(error):
            return "daemon" if multiprocessing.current_process().daemon else None
        return None
    if multiprocessing.get_start_method(allow_none=True) in (None, *_STANDARD):
        return None
    if isinstance(error, AttributeError) and error.name == "env":
        # An error that a dataset raises in a worker arrives without its `obj`.
        return "loky" if isinstance(error.obj, multiprocessing.process.BaseProcess) else None
    ended = isinstance(error, RuntimeError) and "exited unexpectedly" in str(error)
    # A new interpreter gets loky's start method before it could know that.
    return "loky" if ended and asked.method in ("spawn", "forkserver") else None


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> Failed | None:
    """Return the loader because of which the tasks failed, if any."""
    probes.active.pop("gg206", None)  # until the next loader fails
    noted = _failed[:]
    _failed.clear()
    for cause, failed in noted:
        for _ in range(_CHAINED):
            if error is None:
                break
            if error is cause:
                return failed._replace(task=task_of(*items[-1]))
            error = error.__cause__ or error.__context__
    return None
