"""GG303: autograd refuses to run in a forked worker, because its threads exist only in the parent.

PyTorch raises instead of waiting forever once autograd has used device threads in the parent, as it
does with a GPU. It is detected from the error of the task.
"""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.lineage import is_forked
from pytest_gradguard.runtime.kernel.tasks import task_of
from pytest_gradguard.runtime.pitfalls.forks.forked import on_note
from pytest_gradguard.runtime.pitfalls.forks.gg303 import Hang

__all__ = ["inspect_batch", "on_note"]

_REFUSED = "Unable to handle autograd's threading in combination with fork-based multiprocessing"


def activated_by(error: BaseException) -> bool:
    """Whether a task failed because autograd refuses to run in this forked process."""
    return isinstance(error, RuntimeError) and str(error).startswith(_REFUSED) and is_forked()


def inspect_batch(items: Any, results: Any, error: BaseException | None) -> Hang | None:
    """Return the task that failed for this reason, if the error shows it."""
    for _ in range(_CHAINED):
        if error is None:
            return None
        if activated_by(error):
            path, line = callsite.line_of(error)
            return Hang("torch", task_of(*items[-1]), path, line, refused=True)
        error = error.__cause__ or error.__context__
    return None


_CHAINED = 10
