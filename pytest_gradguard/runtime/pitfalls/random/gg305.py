"""GG305: one random generator, of which each batch of tasks draws from a copy in the same state.

A generator reports its own pickling, by its entry in `copyreg.dispatch_table`, which every pickler
uses, or by its `__reduce__` if that is written in Python. In the worker the state of its copy is
compared before and after the tasks. Tasks of one batch share a copy, so numbers repeat from the
second batch that draws.
"""

from __future__ import annotations

import copyreg
import functools
import random
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import locate, probes, transfer, used_globals, watching
from pytest_gradguard.runtime.kernel.checks import Probe, copied, forked_for_tasks, in_pools
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import (
    Task,
    code_of,
    function_of,
    is_the_users,
    reseeds,
    task_of,
)
from pytest_gradguard.runtime.pitfalls.random import random_states, task_code

CODE = "GG305"
PROBES = (
    Probe("gg305", __name__, asks=("random",), ships=copied, starts=True),
    Probe(
        "gg305_inherited",
        "pytest_gradguard.runtime.pitfalls.random.inherited_generators",
        asks=("random",),
        ships=forked_for_tasks,
        by_function=True,
    ),
    Probe(
        "gg305_initial",
        "pytest_gradguard.runtime.pitfalls.random.initial_generators",
        asks=("random",),
        ships=in_pools,
        by_function=True,
    ),
)
_SEARCHED = 300
"""How many objects of a copied task are searched."""
_MOST = 256
"""How many generators of one call are remembered; one that all tasks share is among the first."""


PERSISTENT = "persistent workers"
"""A call's key for workers that are kept for later calls, with their copies."""


class Drawn(NamedTuple):
    """A copy of a generator from which tasks of one batch drew or spawned, picklable.

    Attributes:
        number: identifies the generator among those of the call.
        kind: its class.
        start, end: fingerprints of its state before and after the tasks; if they spawned, of the
            state with the earlier count of children, and of the children for each task.
        onwards: the end is known to follow from the start by drawing.
        task: the function of the batch's first task.
        early: it was drawn before the first sample of a stream: workers that share one may have to
            draw alike there, and iterations that follow each other need not.
    """

    number: int
    kind: str
    start: bytes
    end: bytes
    onwards: bool
    task: Task
    early: bool = False


# -- in the parent ---------------------------------------------------------------------------------

_registered: dict[type, Callable[[Any], Any]] = {}
_shipped: weakref.WeakKeyDictionary[Any, dict[int, tuple[int, Any]]] = dropped_at_end(
    weakref.WeakKeyDictionary()
)
_drawn: weakref.WeakKeyDictionary[Any, list[tuple[int, Drawn]]] = dropped_at_end(
    weakref.WeakKeyDictionary()
)
"""The draws, with the token of their call."""


def ask(call: Any) -> None:
    """Have the known classes of generators report when they are pickled."""
    for kind in random_states.kinds():
        if kind not in _registered and kind not in copyreg.dispatch_table:
            _registered[kind] = _reduce
            copyreg.pickle(kind, _reduce)
    _patches.apply()


def _undo() -> None:
    """Remove the reporting."""
    for kind in list(_registered):
        if copyreg.dispatch_table.get(kind) is _reduce:
            del copyreg.dispatch_table[kind]
        del _registered[kind]


watching.at_end(_undo)


def _reduce(generator: Any) -> Any:
    """Pickle a generator that reports it; called by pickling."""
    reduction = generator.__reduce_ex__(4)
    return attempt(_reporting, reduction, generator, instead=reduction)


def _reporting(reduction: Any, generator: Any) -> Any:
    """The `reduction` of a generator, which reports its arrival."""
    current = transfer.active.transfer
    call = getattr(current, "call", None)
    if call is None or call.kind.carries == "copy" or not isinstance(reduction, tuple):
        return reduction
    rebuild, arguments, *rest = reduction
    return (rebuild_generator, (number(call, generator), rebuild, arguments), *rest)


_patches = Patches([observe(random.Random, "__reduce__", result=_reporting)])


def ship(call: Any, items: Any) -> dict[str, int] | None:
    """Return the generators in tasks for dask, by path: its scheduler pickles them again, which
    loses reports in the pickle."""
    found: dict[str, set[int]] = {}
    for item in items:
        for path, generator in generators_in(item).items():
            found.setdefault(path, set()).add(number(call, generator))
    shared = {path: numbers.pop() for path, numbers in found.items() if len(numbers) == 1}
    return shared or None


def start(call: Any, task: Any, forked: bool) -> list[tuple[int, Any]] | None:
    """Return the generators that a process inherits with its task, with their numbers.

    They are not pickled. Pickled ones report themselves: an empty list, if there are any."""
    found = list(generators_in(task, wide=WIDE).values())
    if not forked:
        return [] if found else None
    every = {id(one): one for one in [*found, *used_by(task[0])]}
    return [(number(call, one), one) for one in every.values()] or None


def used_by(function: Any) -> list[Any]:
    """The generators that a function holds, and those of modules that its code uses."""
    found = generators_in((function, (), {}), wide=WIDE)
    used = {id(one): one for one in found.values()}
    for one in functions_in(function):
        used.update((id(read.value), read.value) for read in read_by(one))
    return list(used.values())


def read_by(function: Any) -> list[used_globals.Read]:
    """The generators of modules that a function uses."""
    kinds = _kinds()
    reads = used_globals.uses_of(function).reads
    return [read for read in reads if issubclass(type(read.value), kinds)]


def own_functions(item: Any) -> list[Any]:
    """The function of a task; for a library's function, the program's functions passed to it."""
    function, args, kwargs = item
    if code_of(function) is None or is_the_users(function_of(function)):
        return [function]
    given = [*args, *kwargs.values()]
    for one in args:
        if type(one) is dict and len(one) <= WIDE:
            given += one.values()
    for one in given[:WIDE]:
        if type(one) is functools.partial:
            given += (*one.args, *one.keywords.values())
    functions = [one for one in given if issubclass(type(one), _FUNCTIONS)]
    return [it for it in functions if is_the_users(function_of(it))] or functions or [function]


def functions_in(item: Any) -> list[Any]:
    """The program's own functions and methods in what is shipped."""
    found: list[Any] = []

    def look(value: Any) -> bool:
        if issubclass(type(value), _FUNCTIONS):
            found.append(value)
        else:
            call = vars(type(value)).get("__call__")
            if isinstance(call, types.FunctionType):
                found.append(types.MethodType(call, value))
        return False

    locate.find([("", item)], look, limit=_SEARCHED, wide=WIDE)
    return found


_FUNCTIONS = (types.FunctionType, types.MethodType)
WIDE = 64
"""How many entries a container may have to be searched."""


def _kinds() -> tuple[type, ...]:
    return (random.Random, *random_states.kinds())


def generators_in(item: Any, wide: int | None = None) -> dict[str, Any]:
    """The generators in a task, by path; large structures are searched in part."""
    kinds = _kinds()
    found: list[Any] = []

    def is_generator(value: Any) -> bool:
        if not issubclass(type(value), kinds):
            return False
        found.append(value)
        return True

    function, args, kwargs = item
    roots = [("args", args), ("kwargs", kwargs), ("", function)]
    paths = locate.find(roots, is_generator, limit=_SEARCHED, wide=wide)
    return {paths[id(generator)]: generator for generator in found}


def number(call: Any, generator: Any) -> int:
    """The number of `generator` in `call`, which keeps it alive while the number is in use."""
    known = _shipped.setdefault(call.family, {})
    entry = known.get(id(generator))
    if entry is None:
        while len(known) >= _MOST:
            known.pop(next(iter(known)), None)
        entry = known[id(generator)] = (next(random_states.numbers), generator)
    return entry[0]


def ships(call: Any) -> bool:
    """Whether a generator went to the workers of `call`."""
    return bool(_shipped.get(call.family))


def on_note(call: Any, note: list[Drawn]) -> None:
    """Report, in the parent, copies of one generator that gave the same numbers."""
    earlier = _drawn.setdefault(call.family, [])
    for drawn in note:
        same = [
            (token, one)
            for token, one in earlier
            if _repeats(one, drawn) and (token != call.token or not drawn.early)
        ]
        if len(earlier) < _MOST:
            earlier.append((call.token, drawn))
        if not same:
            continue
        evidence = Evidence.of(call, kind=drawn.kind, framework=drawn.kind.partition(".")[0])
        if evidence is None:
            return
        evidence.loads_data = call.kind.loads_data
        evidence.processes = call.starts
        evidence.persistent = evidence.persistent or PERSISTENT in call.remembered
        if not call.kind.loads_data:
            evidence.case = drawn.kind
        new = (call.token, drawn)
        for token, one in [*same, new] if not evidence.count else [new]:
            evidence.iterations.add(token)
            evidence.add(one.task, f"`{one.task.name}` draws from a copy of it")


def _repeats(one: Drawn, other: Drawn) -> bool:
    if (one.number, one.start, one.early) != (other.number, other.start, other.early):
        return False
    return one.end == other.end or (one.onwards and other.onwards)


class Evidence(TaskEvidence):
    """Batches of one call that drew from copies of one generator in the same state."""

    code = CODE
    loads_data = False
    processes = False
    persistent = False

    def __init__(self, *args: Any, **details: Any) -> None:
        super().__init__(*args, **details)
        self.iterations: set[int] = set()

    def message(self) -> str:
        if self.processes:
            return (
                f"One `{self.details['kind']}` goes to several processes: {self.count} of those "
                f"that run `{self.first.name}` drew the same numbers, from copies in the same "
                "state."
            )
        if self.loads_data:
            several = len(self.iterations)
            if self.persistent:
                where = f"in {self.count} workers. Persistent workers go on from there."
            elif several > 1:
                where = (
                    f"{self.count} times, in {several} iterations, each of which starts again from "
                    "the same copy."
                )
            else:
                where = f"in {self.count} workers. Each iteration starts again from the same copy."
            return (
                f"One `{self.details['kind']}` is copied into every worker of this loader: "
                f"`{self.first.name}` drew the same random numbers {where}"
            )
        return (
            f"One `{self.details['kind']}` goes to several tasks in {self.backend} workers: "
            f"`{self.first.name}` drew the same numbers {self.count} times, from copies in the "
            "same state."
        )


# -- in the worker ---------------------------------------------------------------------------------


class _Arrived(threading.local):
    """The generators of the tasks that this thread runs next, with their numbers."""

    def __init__(self) -> None:
        self.generators: list[tuple[int, Any]] = []


_arrived = _Arrived()


def arrive(asked: dict[str, int], item: Any) -> None:
    """Record the generators of a task of dask, before it is inspected."""
    found = generators_in(item)
    _arrived.generators = [(asked[path], one) for path, one in found.items() if path in asked]


def arrived(generators: Iterable[tuple[int, Any]]) -> None:
    """Record generators that came to this process earlier, with their numbers, as new ones."""
    _arrived.generators.extend(generators)


def take_arrived() -> list[tuple[int, Any]]:
    """Remove and return the generators that came to this thread, with their numbers."""
    arrived, _arrived.generators = _arrived.generators, []
    return arrived


def rebuild_generator(number: int, rebuild: Callable[..., Any], arguments: Any) -> Any:
    """Rebuild, in a worker, a generator that reported itself; called by unpickling."""
    generator = rebuild(*arguments)
    attempt(_note, number, generator)
    return generator


def _note(number: int, generator: Any) -> None:
    _arrived.generators.append((number, generator))
    probes.activate("gg305")


def begin(asked: Any, process: bool) -> After | None:
    """Record the generators that came with a batch, or that a process has inherited."""
    if not (process or asked):
        return None
    came = asked if asked and isinstance(asked, list) else take_arrived()
    return look(came) if came else None


def look(came: list[tuple[int, Any]]) -> After:
    """Record the states of generators, with their numbers, before tasks draw from them."""
    arrived = [(number, one, random_states.state(one)) for number, one in came]
    spawned = [random_states.spawned(one) for _, one in came]

    def after(items: Any, results: Any, error: BaseException | None) -> list[Drawn] | None:
        also = random_states.setters(one for _, one, _ in arrived)
        functions = list(chain.from_iterable(map(own_functions, items)))
        if any(
            reseeds(function, also) or task_code.takes_a_shard(function) for function in functions
        ):
            return None
        drawn = []
        for (number, generator, start), before in zip(arrived, spawned, strict=True):
            end = random_states.state(generator)
            if start is None or end is None:
                continue
            kind = random_states.name(generator)
            task = task_of(functions[0])
            children = random_states.spawned(generator) - before
            if start.digest != end.digest:
                onwards = random_states.follows(start, end)
                drawn.append(Drawn(number, kind, start.digest, end.digest, onwards, task))
            elif children and _spawns_one(items):
                first = at_child(start.digest, before)
                each = str(children / len(items)).encode()
                drawn.append(Drawn(number, kind, first, each, False, task))
        return drawn or None

    return after


def at_child(state: bytes, spawned: int) -> bytes:
    """A fingerprint of a generator in this state that has spawned so many others."""
    return state + spawned.to_bytes(8, "little")


def _spawns_one(items: Any) -> bool:
    known = {id(function): function for function, _, _ in items}
    return task_code.spawns_one(known.values())
