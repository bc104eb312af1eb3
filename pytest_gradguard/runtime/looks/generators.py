"""GG305: one random generator, of which each batch of tasks draws from a copy in the same state.

A generator reports its own pickling, by its entry in `copyreg.dispatch_table` from which every
pickler starts, or by its `__reduce__` where that is written in Python. In the worker its copy is
looked at before and after the tasks. Tasks of one batch share a copy, so numbers repeat from the
second batch that draws on.
"""

from __future__ import annotations

import copyreg
import functools
import random
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_gradguard.runtime import crossing, random_states
from pytest_gradguard.runtime.faults import fault
from pytest_gradguard.runtime.looks import After
from pytest_gradguard.runtime.noticed import Noticed, noticed
from pytest_gradguard.runtime.patching import Patch, Patches
from pytest_gradguard.runtime.tasks import Task, function_of, task_of

_MOST = 256
"""How many generators of one call are remembered; one that all tasks share is among the first."""


class Drawn(NamedTuple):
    """A copy of a generator that tasks of one batch drew from, in plain values.

    Attributes:
        number: which generator of the call it is a copy of.
        kind: its class.
        start, end: fingerprints of its state before and after the tasks.
        onwards: the end is known to follow from the start by drawing.
        task: the function of the batch's first task.
    """

    number: int
    kind: str
    start: bytes
    end: bytes
    onwards: bool
    task: Task


# -- in the parent ---------------------------------------------------------------------------------

_registered: dict[type, Callable[[Any], Any]] = {}
_shipped: weakref.WeakKeyDictionary[Any, dict[int, tuple[int, Any]]] = weakref.WeakKeyDictionary()
_drawn: weakref.WeakKeyDictionary[Any, list[Drawn]] = weakref.WeakKeyDictionary()


def ask(call: Any) -> None:
    """Have the generators that the program knows report when they are pickled."""
    for kind in random_states.kinds():
        if kind not in _registered and kind not in copyreg.dispatch_table:
            _registered[kind] = _reduce
            copyreg.pickle(kind, _reduce)
    _patches.apply()


def undo() -> None:
    """Take the reports out again."""
    for kind in list(_registered):
        if copyreg.dispatch_table.get(kind) is _reduce:
            del copyreg.dispatch_table[kind]
        del _registered[kind]
    _patches.undo()


def _reduce(generator: Any) -> Any:
    return _reporting(generator, generator.__reduce_ex__(4))


def _watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        return _reporting(self, original(self))

    return __reduce__


_patches = Patches([Patch(random.Random, "__reduce__", _watched)])


def _reporting(generator: Any, reduction: Any) -> Any:
    """The `reduction` of a generator, which says so where it arrives."""
    current = crossing.active.crossing
    call = getattr(current, "call", None)
    if call is None or not isinstance(reduction, tuple):
        return reduction
    try:
        rebuild, arguments, *rest = reduction
        return (rebuild_generator, (_number(call, generator), rebuild, arguments), *rest)
    except Exception as error:
        fault(error)
        return reduction


def _number(call: Any, generator: Any) -> int:
    """The number of `generator` among those of `call`, which keeps it while it counts."""
    known = _shipped.setdefault(call.family, {})
    entry = known.get(id(generator))
    if entry is None:
        while len(known) >= _MOST:
            known.pop(next(iter(known)), None)
        entry = known[id(generator)] = (next(random_states.numbers), generator)
    return entry[0]


def heard(call: Any, note: list[Drawn]) -> None:
    """Report, in the parent, copies of one generator that gave the same numbers."""
    earlier = _drawn.setdefault(call.family, [])
    for drawn in note:
        same = [one for one in earlier if _repeats(one, drawn)]
        if len(earlier) < _MOST:
            earlier.append(drawn)
        if not same:
            continue
        evidence = noticed(call, "GG305", _message, kind=drawn.kind, framework=drawn.kind)
        if evidence is None:
            return
        evidence.details["framework"] = drawn.kind.partition(".")[0]
        for one in [*same[:1], drawn] if not evidence.count else [drawn]:
            evidence.add(one.task, f"`{one.task.name}` draws from a copy of it")


def _repeats(one: Drawn, other: Drawn) -> bool:
    if (one.number, one.start) != (other.number, other.start):
        return False
    return one.end == other.end or (one.onwards and other.onwards)


def _message(evidence: Noticed) -> str:
    return (
        f"one `{evidence.details['kind']}` goes to several tasks in {evidence.backend} workers: "
        f"{evidence.count} batches of `{evidence.first.name}` drew from copies in the same state, "
        "and so the same numbers."
    )


# -- in the worker ---------------------------------------------------------------------------------

_arrived: list[tuple[int, Any]] = []


def rebuild_generator(number: int, rebuild: Callable[..., Any], arguments: Any) -> Any:
    """Rebuild, in a worker, a generator that reported itself; called by unpickling."""
    generator = rebuild(*arguments)
    _arrived.append((number, generator))
    return generator


def begin(asked: None, process: bool) -> After | None:
    """Look at the generators that came with a batch."""
    if not process or not _arrived:
        return None
    arrived = [(number, one, random_states.state(one)) for number, one in _arrived]
    _arrived.clear()

    def after(items: Any, results: Any, error: BaseException | None) -> list[Drawn] | None:
        if any(_reseeds(function) for function, _, _ in items):
            return None
        drawn = []
        for number, generator, start in arrived:
            end = random_states.state(generator)
            if start is None or end is None or start.digest == end.digest:
                continue
            onwards = random_states.follows(start, end)
            kind = random_states.name(generator)
            task = task_of(items[0][0])
            drawn.append(Drawn(number, kind, start.digest, end.digest, onwards, task))
        return drawn or None

    return after


_SETTING = frozenset(("seed", "manual_seed", "advance", "jumped", "jump", "setstate", "set_state"))


def _reseeds(function: Any) -> bool:
    """Whether a task sets the state of generators itself."""
    code = getattr(function_of(function), "__code__", None)
    codes = [code] if isinstance(code, types.CodeType) else []
    while codes:
        code = codes.pop()
        if not _SETTING.isdisjoint(code.co_names):
            return True
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return False
