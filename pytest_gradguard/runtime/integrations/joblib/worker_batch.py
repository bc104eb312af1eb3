"""A batch of joblib's in a worker process: its tasks run under watch.

Workers import this module by name, with joblib loaded. Most batches are one small task, of which
the guard has nothing to say: those take the shortest road, and call nothing but the task. In a
worker that has just got its processor back, what a call costs is less its own time than the memory
that it touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from joblib.parallel import BatchedCalls

from pytest_gradguard.runtime.kernel import collector, probes, task_seeds, worker
from pytest_gradguard.runtime.kernel.collector import here
from pytest_gradguard.runtime.kernel.faults import attempt, without_this_frame
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import runs_tasks
from pytest_gradguard.runtime.kernel.travelling import PLAIN

_run = BatchedCalls.__call__
_ASKED: Mapping[str, Any] = MappingProxyType({})
_BEGUN: Sequence[tuple[str, After]] = ()


class WorkerBatch(BatchedCalls):  # type: ignore[misc]  # joblib has no types
    """A batch in a worker; calling it runs the tasks and returns their results.

    The number of its call travels in the place of joblib's cache for pickling, which has no use
    here.

    Attributes:
        gradguard_asked: what the probes asked in the parent.
    """

    items: Any
    gradguard_asked = _ASKED

    @runs_tasks
    def __call__(self) -> Any:
        begun = _BEGUN
        if not here.quiet:
            begun = attempt(self._begin, instead=_BEGUN)
        here.running = self.items
        try:
            results = _run(self)
        except BaseException as error:
            without_this_frame(error)
            attempt(self._failed, begun, error)
            raise
        here.running = None
        if here.quiet and len(results) == 1 and type(results[0]) in PLAIN:
            return results
        return attempt(self._outgoing, begun, results, instead=results)

    @property
    def _token(self) -> int:
        token: int = self._pickle_cache
        return token

    def _begin(self) -> Sequence[tuple[str, After]]:
        worker.watch_nested_calls()
        here.running = self.items
        begun = probes.begin(self.gradguard_asked, process=True)
        collector.enter(here.inside)
        self.items = task_seeds.seeded_items(self.gradguard_asked, self.items)
        return begun

    def _failed(self, begun: Sequence[tuple[str, After]], error: BaseException) -> None:
        inside = here.inside
        notes = probes.end(begun, self.items, None, error, process=True)
        worker.send_with(error, self._token, notes)
        worker.end_simulation()
        here.running = None
        collector.leave(inside)
        worker.settle()

    def _outgoing(self, begun: Sequence[tuple[str, After]], results: Any) -> Any:
        inside = here.inside
        collector.leave(inside)
        notes = probes.end(begun, self.items, results, process=True)
        if not notes and inside.empty and worker.nothing_in(results):
            if self.gradguard_asked:
                worker.end_simulation()
            outgoing = results
        else:
            found = worker.take_findings()
            outgoing = worker.Outbox(self._token, results, self.items, found, notes)
        worker.settle()
        return outgoing


def unpack(asked: Mapping[str, Any], *arguments: Any) -> WorkerBatch:
    """A batch of which something is asked, which arrives before its tasks; called by unpickling.

    Args:
        asked: what the probes asked in the parent.
        arguments: those of joblib's own class of batches.
    """
    here.quiet = False
    batch = WorkerBatch(*arguments)
    batch.gradguard_asked = asked
    return batch
