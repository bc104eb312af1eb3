"""GG308: tasks in several threads of one call that seed the same global generator.

Only tasks whose code uses a name with "seed" in it are checked. `seed_calls` records what they
seed; a draw shows in the generator's state, which is then not one that a seed has set. Tasks that
seed while they hold a lock of the program take turns.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import types
import weakref
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import callsite, generators
from pytest_gradguard.runtime.kernel.checks import Probe, threads
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, task_of
from pytest_gradguard.runtime.pitfalls.random import random_states, seed_calls, seeding

CODE = "GG308"
PROBES = (Probe("gg308", __name__, asks=("random",), ships=threads, by_function=True),)


_MOST = 50
"""How many batches of a call are compared with later ones."""


class Asked(NamedTuple):
    """The call of a batch for threads.

    Attributes:
        family: the token of its call, or of the family of its call.
        alone: its call is one of many that give single tasks to one pool.
        left: when the batch left.
    """

    family: int
    alone: bool
    left: float


class Seeded(NamedTuple):
    """What the tasks of a batch seeded in a thread.

    Attributes:
        asked: of the batch.
        thread: where they ran.
        ended: when they ended.
        drawn: by library: whether its generator was drawn from since.
        locked: they held a lock each time.
        task: the function of the batch's first task.
        place: the line that seeds.
    """

    asked: Asked
    thread: int
    ended: float
    drawn: dict[str, bool]
    locked: bool
    task: Task
    place: tuple[str, int] | None


# -- as the tasks leave ----------------------------------------------------------------------------


def ship(call: Any, items: Any) -> Asked | None:
    """Return the call of tasks that may seed, and watch seeding from now on."""
    functions = itertools.groupby(item[0] for item in items)
    if not any(seeding.may_seed(function) for function, _ in functions):
        return None
    seed_calls.watch()
    return Asked(call.family.token, call.shared is not None, time.monotonic())


# -- where they run --------------------------------------------------------------------------------

_left_by_seeds: dict[tuple[int, str], set[bytes]] = dropped_at_end({})
"""The states that seeds have set, by family and library."""


class _Seeding:
    """Records what the tasks of a batch seed."""

    def __init__(self, family: int) -> None:
        self._family = family
        self.libraries: set[str] = set()
        self.locked = True
        self.place: tuple[str, int] | None = None

    def record(self, library: str) -> None:
        """Record that this thread has seeded a global generator."""
        self.libraries.add(library)
        state = _state(library)
        if state is not None:
            _left_by_seeds.setdefault((self._family, library), set()).add(state)
        site, locked = _around(sys._getframe(2))
        self.place = self.place or site
        self.locked = self.locked and locked

    def drawn(self) -> dict[str, bool]:
        """Whether the generators are in a state that no seed has set, by library."""
        known = {library: _state(library) for library in sorted(self.libraries)}
        return {
            library: state not in _left_by_seeds.get((self._family, library), ())
            for library, state in known.items()
        }


def _state(library: str) -> bytes | None:
    generator = generators.of_library(library)
    state = None if generator is None else random_states.state(generator)
    return None if state is None else state.digest


def begin(asked: Asked, process: bool) -> After | None:
    """Record what the tasks of a batch seed in this thread."""
    if process:
        return None
    seen, before = _Seeding(asked.family), seed_calls.this_thread.listener
    seed_calls.this_thread.listener = seen.record

    def after(items: Any, results: Any, error: BaseException | None) -> Seeded | None:
        seed_calls.this_thread.listener = before
        if not seen.libraries:
            return None
        ended, task = time.monotonic(), task_of(*items[0])
        thread = threading.get_ident()
        return Seeded(asked, thread, ended, seen.drawn(), seen.locked, task, seen.place)

    return after


def _around(frame: types.FrameType | None) -> tuple[tuple[str, int] | None, bool]:
    """The user's line in `frame` or an outer one, and whether the task holds a lock there."""
    site, locked = None, False
    while frame is not None and frame.f_globals.get("__name__") != _RUNNER:
        if callsite.is_users(frame):
            site = site or (callsite.file_of(frame), frame.f_lineno)
            locked = locked or any(map(_is_held, _values(frame)))
        frame = frame.f_back
    return site, locked


_RUNNER = "pytest_gradguard.runtime.kernel.running"


def _values(frame: types.FrameType) -> list[Any]:
    """Candidates for a frame's lock: its variables, globals, and attributes of its object."""
    known = dict(frame.f_locals)
    owner = getattr(known.get("self"), "__dict__", {})
    used = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    return [*known.values(), *owner.values(), *used]


def _is_held(value: Any) -> bool:
    if isinstance(value, _RLOCK):
        return bool(value._is_owned())
    return isinstance(value, _LOCK) and bool(value.locked())


_LOCK: type[Any] = type(threading.Lock())
_RLOCK: type[Any] = type(threading.RLock())


# -- back in the parent ----------------------------------------------------------------------------

_seeded: weakref.WeakKeyDictionary[Any, list[Seeded]] = dropped_at_end(weakref.WeakKeyDictionary())


def on_note(call: Any, note: Seeded) -> None:
    """Report tasks that seed a generator which tasks in another thread of their call seed, too."""
    earlier = _seeded.get(call.family)
    if earlier is None:
        family = note.asked.family
        weakref.finalize(call.family, attempt, _forget, family).atexit = False
        earlier = _seeded.setdefault(call.family, [])
    earlier.append(note)  # first: another thread may do the same right now
    del earlier[:-_MOST]
    for one in earlier[:]:
        both = one.drawn.keys() & note.drawn.keys()
        drawn = [library for library in both if one.drawn[library] or note.drawn[library]]
        if one is note or not drawn or not _at_once(one, note):
            continue
        evidence = Evidence.of(call, framework=min(drawn), generators=[])
        if evidence is None:
            return
        evidence.involve(drawn)
        for batch in (one, note) if not evidence.count else (note,):
            place = batch.place or (batch.task.path, batch.task.line)
            evidence.add(batch.task, f"`{batch.task.name}` seeds it", *place)
        return


def _forget(family: int) -> None:
    for key in [key for key in _left_by_seeds if key[0] == family]:
        del _left_by_seeds[key]


def _at_once(one: Seeded, other: Seeded) -> bool:
    """Whether both may run at the same time."""
    if one.thread == other.thread or (one.locked and other.locked):
        return False
    apart = one.ended <= other.asked.left or other.ended <= one.asked.left
    return not (one.asked.alone and apart)


class Evidence(TaskEvidence):
    """Tasks of one call that seed a global generator in different threads."""

    code = CODE

    def involve(self, libraries: list[str]) -> None:
        """Name the generators of `libraries`, too."""
        known = sorted({*self.details["generators"], *libraries})
        self.details["generators"] = known
        self.case = known[0] if len(known) == 1 else ""

    def message(self) -> str:
        libraries = self.details["generators"]
        whose = random_states.titled(libraries)
        what, it = ("generators", "them") if len(libraries) > 1 else ("generator", "it")
        return (
            f"`{self.first.name}` seeds the global {what} of {whose} in several threads, which "
            f"share {it}: the numbers that its tasks draw depend on timing."
        )
