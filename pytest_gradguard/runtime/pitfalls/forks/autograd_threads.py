"""GG303: autograd refuses to run in a forked worker, for its threads stayed behind in the parent.

PyTorch does so, instead of waiting forever, once autograd has used threads for devices in the
parent, as it does with a GPU. The error of the task tells.
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.lineage import is_forked
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.pitfalls.forks.forked import heard
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang

__all__ = ["heard", "roused", "roused_by"]

_REFUSED = "Unable to handle autograd's threading in combination with fork-based multiprocessing"


def roused_by(error: BaseException) -> bool:
    """Whether a task failed because autograd refuses to run in this process, a forked one."""
    return isinstance(error, RuntimeError) and str(error).startswith(_REFUSED) and is_forked()


def roused(items: Any, results: Any, error: BaseException | None) -> Hang | None:
    """The task that failed of it, if the error says so."""
    for _ in range(_CHAINED):
        if error is None:
            return None
        if roused_by(error):
            path, line = callsite.line_of(error)
            return Hang("torch", task_of(*items[-1]), path, line, refused=True)
        error = error.__cause__ or error.__context__
    return None


_CHAINED = 10
