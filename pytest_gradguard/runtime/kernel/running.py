"""Runs tasks under watch: in a thread of their call's process, or in a worker process.

`worker_batch` does this itself for joblib's batches in worker processes, most of which are one
small task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.kernel import collector, probes, worker
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.tasks import runs_tasks

if TYPE_CHECKING:
    from pytest_gradguard.runtime.kernel.calls import Call


_batches: dict[int, Any] = {}


def enter(items: Any) -> None:
    """Record that the tasks `items` start in this worker."""
    _batches[id(items)] = items


def leave(items: Any) -> None:
    """Record that the tasks `items` have ended."""
    _batches.pop(id(items), None)


def batches() -> list[Any]:
    """The tasks that run now in this worker, in any thread."""
    running = list(_batches.values())
    if collector.here.running is not None:  # a joblib batch
        running.append(collector.here.running)
    return running


def alone(output: Any) -> list[Any]:
    """The results of one task."""
    return [output]


def same(output: Any) -> Any:
    """The results of several tasks, which are a list already."""
    return output


def in_thread(
    task: Callable[[], Any],
    call: Call,
    items: Any,
    asked: Mapping[str, Any],
    gave: Callable[[Any], Any] = alone,
) -> Any:
    """Run `task` in a thread of the process of `call`, and return its result.

    Args:
        task: runs the tasks.
        call: the call.
        items: the user's tasks in it.
        asked: the results of the probes' `ask`.
        gave: makes the results of `items` from that of `task`.
    """
    begun = attempt(probes.begin, asked, process=False, instead=())
    try:
        output = task()
    except BaseException as error:
        without_this_frame(error)
        notes = attempt(probes.end, begun, items, None, error, process=False, instead=[])
        attempt(probes.deliver, call, notes)
        raise
    results = attempt(gave, output)
    notes = attempt(probes.end, begun, items, results, process=False, instead=[])
    attempt(probes.deliver, call, notes)
    return output


@runs_tasks
def in_process(
    task: Callable[[], Any],
    items: Any,
    asked: Mapping[str, Any],
    failed: Callable[[BaseException, probes.Notes], None],
    gave: Callable[[Any], Any] = alone,
) -> tuple[Any, probes.Notes]:
    """Run `task` in a worker process; return its result and the probes' notes.

    Args:
        task, items, asked, gave: as for `in_thread`.
        failed: called with the task's error, and the probes' notes.
    """
    inside = collector.here.inside
    attempt(worker.watch_nested_calls)
    attempt(enter, items)
    begun = attempt(probes.begin, asked, process=True, instead=())
    attempt(collector.enter, inside)
    try:
        try:
            output = task()
        finally:
            attempt(leave, items)
    except BaseException as error:
        without_this_frame(error)
        notes = attempt(probes.end, begun, items, None, error, process=True, instead=[])
        attempt(failed, error, notes)
        raise
    finally:
        attempt(collector.leave, inside)
    results = attempt(gave, output)
    return output, attempt(probes.end, begun, items, results, process=True, instead=[])
