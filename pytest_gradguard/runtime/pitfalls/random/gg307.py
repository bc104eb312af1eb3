"""GG307: tasks in new workers that draw from a global generator which the caller has seeded.

The first batch of a call in each worker is checked: the generator there has no seed of the program,
its state advances, and the tasks name no seed. If several workers have Python's generator in the
same state, it was seeded there.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from pytest_gradguard.runtime.kernel import generators, used_globals
from pytest_gradguard.runtime.kernel.checks import Probe, isolated_for_tasks
from pytest_gradguard.runtime.kernel.dispatch import children
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import names_in, task_of
from pytest_gradguard.runtime.kernel.travelling import PLAIN
from pytest_gradguard.runtime.pitfalls.random import random_states, seeding
from pytest_gradguard.runtime.pitfalls.random.gg304 import Drawn

CODE = "GG307"
PROBES = (Probe("gg307", __name__, asks=("random",), ships=isolated_for_tasks, by_function=True),)

_LIBRARIES = ("torch", "numpy", "random")
_MOST = 1_000


# -- in the parent ---------------------------------------------------------------------------------

_drawn: weakref.WeakKeyDictionary[Any, dict[bytes, Drawn]] = dropped_at_end(
    weakref.WeakKeyDictionary()
)


def ship(call: Any, items: Any) -> tuple[int, list[str]] | None:
    """Return the token of the call, or of its family, and the libraries seeded here."""
    seeded = [library for library in _LIBRARIES if seeding.is_seeded(library)]
    if not seeded or (call.kind.forks and children.forked_workers(call)):
        return None
    function, args, kwargs = items[0]
    plain = all(type(one) in PLAIN for one in (*args, *kwargs.values()))
    return None if plain and not _touches(function, seeded) else (call.family.token, seeded)


def _touches(function: Any, libraries: list[str]) -> bool:
    """Whether a task with only plain arguments may use one of these libraries."""
    functions = used_globals.uses_of(function).functions
    if not functions:
        return True  # a library's function
    for one in functions:
        for name in names_in(one.__code__):
            value = one.__globals__.get(name)
            origin = getattr(value, "__module__", None) or getattr(value, "__name__", name)
            if str(origin).partition(".")[0] in libraries:
                return True
    return False


def on_note(call: Any, note: list[Drawn]) -> None:
    """Report tasks that drew from generators which the caller's seed does not reach."""
    earlier = _drawn.setdefault(call.family, {})
    for drawn in note:
        if drawn.library == "random":
            if len(earlier) >= _MOST:
                return
            one = earlier.setdefault(drawn.start, drawn)
            if one.process != drawn.process or len(earlier) == 1:
                continue
        evidence = Evidence.of(call, framework=drawn.library, generators=[])
        if evidence is None:
            return
        if drawn.library not in evidence.details["generators"]:
            evidence.details["generators"].append(drawn.library)
        evidence.add(drawn.task, f"`{drawn.task.name}` draws from the global generator")


class Evidence(TaskEvidence):
    """Tasks of one call that drew from generators which the caller's seed does not reach."""

    code = CODE

    def message(self) -> str:
        whose = random_states.titled(self.details["generators"])
        return (
            f"`{self.first.name}` draws global random numbers of {whose} in {self.backend} "
            "workers, which the caller's seed does not reach: the numbers change from run to run."
        )


# -- in the worker ---------------------------------------------------------------------------------

_looked_at: set[int] = dropped_at_end(set())


def begin(asked: tuple[int, list[str]], process: bool) -> After | None:
    """Record the global generators' states, before the first batch of a call in this worker."""
    token, libraries = asked
    if not process or token in _looked_at:
        return None
    if len(_looked_at) >= _MOST:
        _looked_at.clear()
    _looked_at.add(token)
    before = {library: _unseeded(library) for library in libraries}

    def after(items: Any, results: Any, error: BaseException | None) -> list[Drawn] | None:
        if error is not None or any(seeding.may_seed(item[0]) for item in items):
            return None
        drawn = []
        for library, start in before.items():
            end = None if start is None else _unseeded(library)
            if start is None or end is None or start.digest == end.digest:
                continue
            if random_states.follows(start, end):
                drawn.append(Drawn(os.getpid(), library, start.digest, task_of(*items[0])))
        return drawn or None

    return after


def _unseeded(library: str) -> random_states.State | None:
    """The state of a global generator without a known seed of the program."""
    generator = generators.of_library(library)
    if generator is None or seeding.is_seeded(library):
        return None
    return random_states.state(generator)
