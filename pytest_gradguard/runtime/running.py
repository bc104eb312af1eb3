"""Tasks run under watch: in a thread of the process of their call, or in a worker process.

Batches of joblib's in worker processes do the same by themselves (`worker_batch`), for most of them
are one small task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime import backwards, collector, probes, worker
from pytest_gradguard.runtime.faults import attempt, fault, without_this_frame
from pytest_gradguard.runtime.tasks import runs_tasks

if TYPE_CHECKING:
    from pytest_gradguard.runtime.calls import Call


def alone(output: Any) -> list[Any]:
    """The results of one task."""
    return [output]


def same(output: Any) -> Any:
    """The results of several tasks, which are given as a list."""
    return output


class _Once:
    """The program's own function, and what became of it.

    Attributes:
        begun: it was called.
        output, error: what it gave, or raised.
    """

    __slots__ = ("begun", "error", "function", "output")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.begun = False
        self.output: Any = None
        self.error: BaseException | None = None

    @runs_tasks
    def __call__(self) -> Any:
        self.begun = True
        try:
            self.output = self.function()
        except BaseException as error:
            without_this_frame(error)
            self.error = error
            raise
        return self.output


def surely(run: Callable[[Callable[[], Any]], Any], function: Callable[[], Any]) -> Any:
    """What `run(function)` gives; where it fails by itself, what `function` alone does.

    Args:
        run: a function of the guard's, which calls the one that it is given once.
        function: the program's.
    """
    once = _Once(function)
    try:
        return run(once)
    except BaseException as error:
        if error is once.error or not isinstance(error, Exception):
            without_this_frame(error)
            raise
        fault(error)
    if once.error is not None:
        raise once.error
    return once.output if once.begun else function()


def in_thread(
    call: Call,
    task: Callable[[], Any],
    items: Any,
    asked: Mapping[str, Any],
    gave: Callable[[Any], Any] = alone,
) -> Any:
    """Run `task` in a thread of the process of `call`, and return what it gives.

    Args:
        call: the call.
        task: what is to be run.
        items: the user's tasks in it.
        asked: what the probes asked.
        gave: the results of `items` in what `task` gives.
    """
    begun = attempt(probes.begin, asked, process=False, instead=())
    try:
        output = task()
    except BaseException as error:
        without_this_frame(error)
        probes.hear(call, probes.end(begun, items, None, error, process=False))
        raise
    probes.hear(call, probes.end(begun, items, gave(output), process=False))
    return output


@runs_tasks
def in_process(
    task: Callable[[], Any],
    items: Any,
    asked: Mapping[str, Any],
    failed: Callable[[BaseException, probes.Notes], None],
    gave: Callable[[Any], Any] = alone,
) -> tuple[Any, probes.Notes]:
    """Run `task` in a worker process; return what it gives, and what the probes noted.

    Args:
        task, items, asked, gave: as for `in_thread`.
        failed: takes what the task raises, and what the probes noted then.
    """
    worker.watch_nested_calls()
    inside = collector.here.inside
    begun = probes.begin(asked, process=True)
    collector.enter(inside)
    try:
        with backwards.during(items):
            output = task()
    except BaseException as error:
        without_this_frame(error)
        failed(error, probes.end(begun, items, None, error, process=True))
        raise
    finally:
        collector.leave(inside)
    return output, probes.end(begun, items, gave(output), process=True)
