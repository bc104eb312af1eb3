"""GG304: forked workers that draw from the parent's global generators, each from its own copy.

Every worker starts in the state that the parent had at the fork. Only the first batch of a call in
each worker is checked. Python's own `random` is reseeded in a forked process.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, NamedTuple

from pytest_gradguard.findings import Severity
from pytest_gradguard.runtime.kernel import generators
from pytest_gradguard.runtime.kernel.checks import TORCH, Probe, forked_for_tasks
from pytest_gradguard.runtime.kernel.dispatch import children
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, reseeds, task_of
from pytest_gradguard.runtime.pitfalls.random import random_states

CODE = "GG304"
PROBES = (
    Probe(
        "gg304",
        __name__,
        asks=("numpy.random.mtrand", TORCH),
        ships=forked_for_tasks,
        starts=True,
    ),
)


class Drawn(NamedTuple):
    """The draws of a batch's tasks from a global generator, picklable.

    Attributes:
        process: the worker's process id.
        library: whose generator it is.
        start: a fingerprint of its state before the tasks.
        task: the function of the batch's first task.
    """

    process: int
    library: str
    start: bytes
    task: Task


# -- in the parent ---------------------------------------------------------------------------------

_MOST = 1_000
_drawn: weakref.WeakKeyDictionary[Any, dict[tuple[str, bytes], Drawn]] = dropped_at_end(
    weakref.WeakKeyDictionary()
)


def ship(call: Any, items: Any) -> int | None:
    """Return the token of the call, or of its family, if the workers are forked."""
    return call.family.token if children.forked_workers(call) else None


def start(call: Any, task: Any, forked: bool) -> int | None:
    """Return the token of the call, if it forks a process for the program."""
    return call.token if forked else None


def on_note(call: Any, note: list[Drawn]) -> None:
    """Report workers that drew the same numbers, in this call or in an earlier one."""
    earlier = _drawn.setdefault(call.collector, {})
    for drawn in note:
        if len(earlier) >= _MOST:
            earlier.clear()
        one = earlier.setdefault((drawn.library, drawn.start), drawn)
        if one.process == drawn.process:
            continue
        evidence = Evidence.of(call, framework=drawn.library, processes=[one.process])
        if evidence is None:
            return
        evidence.details["processes"].append(drawn.process)
        for task in (one.task, drawn.task) if not evidence.count else (drawn.task,):
            evidence.add(task, f"`{task.name}` draws from the global generator")


class Evidence(TaskEvidence):
    """Forked workers of one call that drew the same numbers."""

    code = CODE
    severity = Severity.INFO

    def message(self) -> str:
        return (
            f"{self.count} forked workers that run `{self.first.name}` drew the same numbers: "
            f"their copies of {self.details['framework']}'s global generator were in the same "
            "state."
        )


# -- in the worker ---------------------------------------------------------------------------------

_looked_at: set[tuple[int, int]] = dropped_at_end(set())


def begin(asked: int | None, process: bool) -> After | None:
    """Record the global generators' states, before the first batch of a call in this worker."""
    key = (os.getpid(), asked or 0)
    if not process or asked is None or key in _looked_at:
        return None
    _looked_at.add(key)
    before = {name: random_states.state(one) for name, one in _generators().items()}

    def after(items: Any, results: Any, error: BaseException | None) -> list[Drawn] | None:
        if any(reseeds(function) for function, _, _ in items):
            return None
        drawn = []
        for name, generator in _generators().items():
            start, end = before.get(name), random_states.state(generator)
            if start is None or end is None or start.digest == end.digest:
                continue
            if random_states.follows(start, end):
                task = task_of(*items[0])
                drawn.append(Drawn(os.getpid(), name, start.digest, task))
        return drawn or None

    return after


def _generators() -> dict[str, Any]:
    """The global generators of the libraries that are loaded."""
    found = {name: generators.of_library(name) for name in ("numpy", "torch")}
    return {name: generator for name, generator in found.items() if generator is not None}
