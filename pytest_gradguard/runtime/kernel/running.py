"""Tasks run under watch: in a thread of the process of their call, or in a worker process.

Batches of joblib's in worker processes do the same by themselves (`worker_batch`), for most of them
are one small task.
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
    """Say that the tasks `items` run in this worker from now on."""
    _batches[id(items)] = items


def leave(items: Any) -> None:
    """Say that the tasks `items` run no more."""
    _batches.pop(id(items), None)


def batches() -> list[Any]:
    """The tasks that run now in this worker, in any thread."""
    running = list(_batches.values())
    if collector.here.running is not None:  # a batch of joblib's
        running.append(collector.here.running)
    return running


def alone(output: Any) -> list[Any]:
    """The results of one task."""
    return [output]


def same(output: Any) -> Any:
    """The results of several tasks, which are given as a list."""
    return output


def in_thread(
    task: Callable[[], Any],
    call: Call,
    items: Any,
    asked: Mapping[str, Any],
    gave: Callable[[Any], Any] = alone,
) -> Any:
    """Run `task` in a thread of the process of `call`, and return what it gives.

    Args:
        task: what is to be run.
        call: the call.
        items: the user's tasks in it.
        asked: what the probes asked.
        gave: the results of `items` in what `task` gives.
    """
    begun = attempt(probes.begin, asked, process=False, instead=())
    try:
        output = task()
    except BaseException as error:
        without_this_frame(error)
        notes = attempt(probes.end, begun, items, None, error, process=False, instead=[])
        attempt(probes.hear, call, notes)
        raise
    results = attempt(gave, output)
    notes = attempt(probes.end, begun, items, results, process=False, instead=[])
    attempt(probes.hear, call, notes)
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
