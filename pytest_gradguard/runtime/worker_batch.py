"""A batch of joblib's in a worker process: its tasks run under watch.

Workers import this module by name, with joblib loaded. Most batches are one small task, of which
the guard has nothing to say: those take the shortest road.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from joblib.parallel import BatchedCalls

from pytest_gradguard.runtime import collector, looks, worker
from pytest_gradguard.runtime.faults import without_this_frame
from pytest_gradguard.runtime.travelling import PLAIN

_run = BatchedCalls.__call__
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class WorkerBatch(BatchedCalls):  # type: ignore[misc]  # joblib has no types
    """A batch in a worker; calling it runs the tasks and returns their results.

    Attributes:
        gradguard_token: the number of its call; it travels as the state of its pickle.
        gradguard_asked: what the looks asked in the parent.
    """

    gradguard_token = 0
    gradguard_asked = _NOTHING

    def __call__(self) -> Any:
        if not worker.ready:
            worker.watch_nested_calls()
        inside = worker.inside
        asked = self.gradguard_asked
        # Nothing but the task is called where there is no need: in a worker that has just got its
        # processor back, what a call costs is less its own time than the memory that it touches.
        begun = looks.begin(asked, process=True) if asked or looks.roused else ()
        stack = collector.stack
        stack.append(inside)
        try:
            results = _run(self)
        except BaseException as error:
            without_this_frame(error)
            notes = looks.end(begun, self.items, None, error, process=True)
            worker.send_with(error, self.gradguard_token, notes)
            worker.end_simulation()
            raise
        finally:
            if stack and stack[-1] is inside:
                stack.pop()
            else:
                collector.leave(inside)
        quiet = inside.empty and not (asked or looks.roused)
        if quiet and len(results) == 1 and type(results[0]) in PLAIN:
            return results
        notes = looks.end(begun, self.items, results, process=True)
        if not notes and inside.empty and worker.nothing_in(results):
            if asked:
                worker.end_simulation()
            return results
        found = worker.take_findings()
        return worker.Outbox(self.gradguard_token, results, self.items, found, notes)


def state(token: int) -> Mapping[str, Any]:
    """The state of a batch of which nothing is asked.

    Args:
        token: the number of its call.
    """
    return {"gradguard_token": token}


def unpack(token: int, asked: Mapping[str, Any], *arguments: Any) -> WorkerBatch:
    """A batch of which something is asked, which arrives before its tasks; called by unpickling.

    Args:
        token: the number of its call.
        asked: what the looks asked in the parent.
        arguments: those of joblib's own class of batches.
    """
    batch = WorkerBatch(*arguments)
    batch.gradguard_token = token
    batch.gradguard_asked = asked
    return batch
