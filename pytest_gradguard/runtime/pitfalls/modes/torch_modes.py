"""GG301: torch modes of the caller that do not apply where the tasks run.

Reported if the tasks behaved differently than in the caller: they built a graph though gradients
were off, computed in full precision what autocast would have lowered, or created a tensor on a
device other than the caller's default. That includes the caller's own generator of tasks, which
joblib pulls from other threads after the first few.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from pytest_gradguard.runtime.frameworks.torch import modes
from pytest_gradguard.runtime.kernel import pulling
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import GENERATOR, Task, task_of
from pytest_gradguard.runtime.pitfalls.modes import gg301

_is_autocast_enabled = torch.is_autocast_enabled


_COMPUTE_BEFORE = (
    "Compute what the tasks need before the `Parallel` call, such as in a list, or set the mode "
    "inside the generator."
)


class Lost(NamedTuple):
    """What tasks did without the caller's mode, picklable."""

    mode: str
    did: str
    task: Task | None


def ask(call: Any) -> tuple[Any, ...] | None:
    """Return the modes of the calling thread that other threads lack."""
    if not may_be_in_force():
        return None
    found = modes.in_force()
    off = not torch.is_grad_enabled()
    call.within_autograd = off and (found is None or found.gradients_off is None)
    return None if found is None else tuple(found)  # a worker may have no torch to read it


def may_be_in_force() -> bool:
    """Whether this thread may have modes other than the default."""
    return (
        not torch.is_grad_enabled()
        or _is_autocast_enabled("cpu")
        or _is_autocast_enabled("cuda")
        or bool(torch._C._len_torch_function_stack())
    )


def begin(asked: tuple[Any, ...] | None, process: bool) -> After | None:
    """Watch the tasks of a batch."""
    watch = None if asked is None else modes.watch(modes.Modes(*asked))
    if watch is None:
        return None

    def after(items: Any, results: Any, error: BaseException | None) -> list[Lost] | None:
        task = task_of(*items[0])
        return [Lost(mode, did, task) for mode, did in watch.end()] or None

    return after


def on_note(call: Any, note: list[Lost]) -> None:
    """Report, in the parent, what tasks did without a mode of the caller."""
    for lost in note:
        evidence = gg301.Evidence.of(call, _message, mode=lost.mode)
        if evidence is None:
            continue
        evidence.details.setdefault("did", lost.did)
        if lost.task is None:
            evidence.details["generator"] = True
            if not evidence.count:
                evidence.advice = _COMPUTE_BEFORE
            evidence.add(GENERATOR, "")
        else:
            evidence.add(lost.task, f"`{lost.task.name}` {lost.did}")


def _message(evidence: gg301.Evidence) -> str:
    details = evidence.details
    if evidence.first == GENERATOR:
        who, where = GENERATOR.name, ", which joblib pulls from other threads after the first few,"
    else:
        who, where = f"`{evidence.first.name}`", f" in {evidence.backend} workers"
    return f"{details['mode']} applies in the calling thread only: {who}{where} {details['did']}."


def wrap_tasks(call: Any, tasks: Any) -> Any:
    """Watch `tasks` where joblib pulls them from a thread other than the caller's."""
    asked = modes.Modes(*call.asked[gg301.MODES])

    def begin() -> pulling.Ending | None:
        watch = modes.watch(asked)
        if watch is None:
            return None
        return lambda: on_note(call, [Lost(mode, did, None) for mode, did in watch.end()])

    return pulling.wrap_tasks(tasks, begin)
