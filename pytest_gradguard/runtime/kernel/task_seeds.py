"""Global random generators that depend only on the task, not on where or when it runs.

While `seeding` is active, every task of every call runs with the global generators seeded from (the
seed, the number of its call, its number in the call): in any worker, at any time, in batches of any
size, or in the calling process. So a program can run twice, once with its workers and once without
them, and its tasks draw the same numbers. Afterwards the generators of the task's process get back
their earlier states.

A runner of inline tasks wraps each of them in `Seeded`, with `numbers_of` its call:

    with task_seeds.seeding(7):
        call = calls.begin()                      # numbered in the order of the program's calls
        numbers = task_seeds.numbers_of(call)     # None while `seeding` is not active
        for index, (function, args, kwargs) in enumerate(tasks):
            results.append(Seeded(function, numbers, index)(*args, **kwargs))

Calls that a task makes itself are numbered within the task. Tasks in threads of one process share
its generators, so they run one after the other; if they wait for each other, they draw as without
seeding. Processes that the program starts itself begin as without it, except for states that would
be arbitrary. The workers of a torch `DataLoader` are seeded by torch, from the parent's generator.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gradguard.runtime.kernel import generators
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.state import dropped_at_end

if TYPE_CHECKING:
    from pytest_gradguard.runtime.kernel.calls import Call
    from pytest_gradguard.runtime.kernel.registry import Workers

NAME = "seeds"
"""The probe's name: its question asks a batch to run seeded."""

Key = tuple[int, ...]
_LONGEST_WAIT = 10.0
"""Seconds for which a task in a thread waits for another to end."""


def _seeded_here(workers: Workers) -> bool:
    return not workers.loads_data


PROBES = (
    Probe(NAME, __name__, asks=("random",), ships=_seeded_here, only_asked=True, starts=True),
)


class Numbers(NamedTuple):
    """The numbers of the tasks of one batch.

    Attributes:
        call: the seed, and the number of the call; in a task, after the task's own numbers.
        first: the number of the batch's first task in the call.
    """

    call: Key
    first: int = 0

    def plus(self, count: int) -> Numbers:
        """The numbers `count` tasks later."""
        return Numbers(self.call, self.first + count)


class Process(NamedTuple):
    """The number of a process that the program starts itself.

    Attributes:
        call: as for `Numbers`.
        forked: it is forked.
    """

    call: Key
    forked: bool


class _Stream:
    """Numbers the calls that begin in one place: in the program, or in one of its tasks."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self.count = 0
        self._lock = Lock()

    def next(self) -> Key:
        """The key of the call that begins now."""
        with self._lock:
            self.count += 1
            return (*self._key, self.count)


class _Thread(threading.local):
    stream: _Stream | None = None
    numbers: bool = True


_program: _Stream | None = None
_thread = _Thread()


@contextmanager
def seeding(seed: int) -> Iterator[None]:
    """Number the calls of the block from 1, and seed their tasks by these numbers and `seed`."""
    global _program
    outer, _program = _program, _Stream((seed,))
    try:
        yield
    finally:
        _program = outer


@contextmanager
def unnumbered() -> Iterator[None]:
    """A block whose calls get no number: a pool begins them to start its workers."""
    outer, _thread.numbers = _thread.numbers, False
    try:
        yield
    finally:
        _thread.numbers = outer


def numbered() -> int:
    """How many calls the program has begun since `seeding` began."""
    return 0 if _program is None else _program.count


# -- in the parent: the probe's functions ----------------------------------------------------------


def ask(call: Call) -> Numbers | None:
    """Number a call that begins."""
    stream = _thread.stream or _program
    if stream is None or not _thread.numbers:
        return None
    numbers = Numbers(stream.next())
    call.remembered[NAME] = numbers
    return numbers


def numbers_of(call: Call) -> Numbers | None:
    """The numbers of the next tasks of `call`; None: its tasks are not seeded."""
    numbers: Numbers | None = call.remembered.get(NAME)
    return numbers


def ship(call: Call, items: Any) -> Numbers | None:
    """Number the tasks of one batch, in the order in which the batches leave."""
    numbers = numbers_of(call)
    if numbers is not None:
        call.remembered[NAME] = numbers.plus(len(items))
    return numbers


def start(call: Call, task: Any, forked: bool) -> Process | None:
    """Number a process that `call` starts."""
    numbers = numbers_of(call)
    return None if numbers is None else Process(numbers.call, forked)


def begin(asked: Numbers | Process, process: bool) -> None:
    """Prepare a process that the program has started; runners of tasks call `Seeded`."""
    if isinstance(asked, Process):
        generators.seed_process(_number(asked.call), forked=asked.forked)
        _thread.stream = _Stream(asked.call)


@contextmanager
def as_process(asked: Process | None) -> Iterator[None]:
    """A block that draws here as a process would that got this question."""
    if asked is None:
        yield
        return
    outer, restore = _thread.stream, generators.capture()
    begin(asked, True)
    try:
        yield
    finally:
        _thread.stream = outer
        restore()


# -- where the tasks run ---------------------------------------------------------------------------


def seeded_items(asked: Mapping[str, Any], items: Any) -> Any:
    """`items` with functions that run seeded, if asked."""
    numbers: Numbers | None = asked.get(NAME)
    if numbers is None:
        return items
    return [
        (Seeded(function, numbers, index), args, kwargs)
        for index, (function, args, kwargs) in enumerate(items)
    ]


def seeded(asked: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, the only task of its batch, so that it runs seeded, if asked."""
    numbers: Numbers | None = asked.get(NAME)
    return function if numbers is None else Seeded(function, numbers)


class Seeded:
    """A function that runs seeded: each call of it is the next task.

    Args:
        function: the function to run.
        numbers: those of the batch.
        index: which of its tasks the first call is.
    """

    def __init__(self, function: Callable[..., Any], numbers: Numbers, index: int = 0) -> None:
        self.__wrapped__ = function
        self._next = numbers.plus(index)
        self._turn = _turns.setdefault(numbers.call[:-1], _Turn())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        numbers, self._next = self._next, self._next.plus(1)
        key = (*numbers.call, numbers.first)
        with self._turn.taken() as alone:
            outer, _thread.stream = _thread.stream, _Stream(key)
            restore = attempt(_seed, key) if alone else None
            try:
                return self.__wrapped__(*args, **kwargs)
            except BaseException as error:
                without_this_frame(error)
                raise
            finally:
                _thread.stream = outer
                if restore is not None:
                    attempt(restore)


def _seed(key: Key) -> generators.Restore:
    restore = generators.capture()
    generators.seed(_number(key))
    return restore


def _number(key: Key) -> int:
    return random.Random(repr(key)).getrandbits(64)


class _Turn:
    """A turn that the tasks of calls made in one place take one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """A block in which no other task runs; yields False if one has to."""
        taken = not self._given_up and self._lock.acquire(timeout=_LONGEST_WAIT)
        self._given_up = not taken
        try:
            yield taken
        finally:
            if taken:
                self._lock.release()


_turns: weakref.WeakValueDictionary[Key, _Turn] = dropped_at_end(
    weakref.WeakValueDictionary(), in_child=True
)
