"""Runs a task in a worker under watch, and sends its result back.

Workers import this module by name, so it stays light, and its functions keep their signatures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel import collector, probes, running, task_seeds, worker
from pytest_gradguard.runtime.kernel.faults import attempt, carried, without_this_frame
from pytest_gradguard.runtime.kernel.transfer import bracketed

Items = Sequence[tuple[Any, Any, Any]]
PoolTask = tuple[Any, Any, Any]
"""What a pool runs as one task: its function, arguments and keywords."""


Split = Callable[[Any, Any, Any], "Chunk | None"]
"""Finds the program's tasks in one task of a pool: from its function and arguments, returns a
`Chunk` of them, or None if it is no chunk. It is pickled by name."""


class Chunk(Sequence[tuple[Any, Any, Any]]):
    """The tasks of one function for each of `arguments`, created on access.

    Attributes:
        function: the function.
        around: makes a task of the pool with these arguments, of another function.
    """

    def __init__(
        self, function: Any, arguments: Any, star: bool, around: Callable[[Any], PoolTask]
    ) -> None:
        self.function = function
        self.around = around
        self._arguments = arguments
        self._star = star

    def __len__(self) -> int:
        return len(self._arguments)

    def __getitem__(self, index: Any) -> Any:
        one = self._arguments[index]
        return (self.function, one if self._star else (one,), {})


def items_of(function: Any, args: Any, kwargs: Any, split: Split | None) -> tuple[Items, bool]:
    """The program's tasks in one task of a pool or executor.

    Returns:
        The tasks, and whether there is a list of results; otherwise there is one task and its
        result.
    """
    chunk = None if split is None else split(function, args, kwargs)
    return ([(function, args, kwargs)], False) if chunk is None else (chunk, True)


def runnable(
    task: PoolTask, split: Split | None, asked: Mapping[str, Any]
) -> tuple[Callable[[], Any], Items, bool]:
    """A function that runs a pool's task as the probes asked, and the result of `items_of`."""
    items, many = items_of(*task, split)
    numbers = asked.get(task_seeds.NAME)
    if numbers is not None:
        function, args, kwargs = task
        if isinstance(items, Chunk):
            task = items.around(task_seeds.Seeded(items.function, numbers))
        else:
            task = (task_seeds.Seeded(function, numbers), args, kwargs)
    return bound(task), items, many


def bound(task: PoolTask) -> Callable[[], Any]:
    """A task of a pool as a function without arguments."""
    function, args, kwargs = task
    return functools.partial(function, *args, **kwargs)


class WorkerTask:
    """A task in a worker process; calling it runs the task and returns its result."""

    __slots__ = ("_asked", "_split", "_task", "_token")

    def __init__(
        self,
        token: int,
        asked: Mapping[str, Any],
        function: Any,
        args: Any,
        kwargs: Any,
        split: Split | None = None,
    ) -> None:
        self._token = token
        self._asked = asked
        self._task = (function, args, kwargs)
        self._split = split

    def __call__(self) -> Any:
        unseen = (bound(self._task), (), False)
        task, items, many = attempt(runnable, self._task, self._split, self._asked, instead=unseen)
        try:
            return carried(task, run, items, many, self._token, self._asked)
        except BaseException as error:
            without_this_frame(error)
            raise


def run(
    task: Callable[[], Any], items: Items, many: bool, token: int, asked: Mapping[str, Any]
) -> Any:
    """Run `task`, which contains `items`, and return its result, or an outbox with it."""

    def failed(error: BaseException, notes: probes.Notes) -> None:
        worker.send_with(error, token, notes)
        worker.end_simulation()

    gave = running.same if many else running.alone
    try:
        result, notes = running.in_process(task, items, asked, failed, gave)
    except BaseException as error:
        without_this_frame(error)
        raise
    return attempt(_outgoing, result, items, many, token, notes, instead=result)


def _outgoing(result: Any, items: Items, many: bool, token: int, notes: probes.Notes) -> Any:
    results = result if many else [result]
    if collector.here.inside.empty and not notes and worker.nothing_in(results):
        worker.end_simulation()
        return result
    kind = worker.Outbox if many else OneResult
    return kind(token, results, items, worker.take_findings(), notes)


class OneResult(worker.Outbox):
    """The result of one task on its way back; unpickled, it is that result."""

    def __repr__(self) -> str:
        return repr(self._results[0])

    def _contents(self) -> Any:
        return self._results[0]

    def _reduced(self) -> tuple[Any, ...]:
        transfer = worker.Return(self._token, self._results, self._items)
        arguments = (self._token, self._results, self._found, self._notes)
        return bracketed(transfer, receive_one, arguments)


def receive_one(token: int, results: Any, found: list[Finding], notes: probes.Notes) -> Any:
    """Handle the result of one task in the parent; called by unpickling."""
    return worker.receive(token, results, found, notes)[0]
