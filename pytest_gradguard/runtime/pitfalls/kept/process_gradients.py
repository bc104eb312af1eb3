"""A process that the program starts itself reports which gradients it has kept: GG106.

`worker_gradients` reads the reports when an optimizer steps. What the process puts into queues and
connections after a backward pass counts as a task's result; many such processes answer in a loop
for as long as the program trains, so it reports then, too. After its first backward passes it
reports what holds if it is killed before its end. `arrived` handles what arrives while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.kernel import frameworks, probes
from pytest_gradguard.runtime.kernel.dispatch.reporting import Reporter
from pytest_gradguard.runtime.pitfalls.kept import backwards

if TYPE_CHECKING:
    from pytest_gradguard.runtime.frameworks.torch.copies import Copies


class Watched:
    """What this process does with the tensors passed to it.

    Args:
        items: its function and arguments, as the only task.
        reporter: reports to the parent.
    """

    def __init__(self, items: list[tuple[Any, Any, Any]], reporter: Reporter) -> None:
        from pytest_gradguard.runtime.frameworks.torch import tensors
        from pytest_gradguard.runtime.frameworks.torch.copies import Copies
        from pytest_gradguard.runtime.pitfalls.kept.arrived import Arrived

        self._items = items
        self._reporter = reporter
        self._copies = Copies(self._items, shared=True)
        self._reported: set[int] = set()
        self._reached = 0
        # The first subscriber is the last to be notified of the end of a backward pass.
        torch_engine.subscribe(self._backward, lasting=True)
        backwards.watch(self._items, self._copies)
        self._arrived = Arrived(self._tell)
        frameworks.watch_reductions()
        tensors.pickled.subscribe(self._pickled, lasting=True)

    def _backward(self, backward: torch_engine.Backward) -> torch_engine.End | None:
        return self._passed if backward.accumulates else None

    def _passed(self, _: Any, raised: BaseException | None) -> None:
        """After a pass that gave more tensors a gradient, report them."""
        reached = sum(copy.digest is not None for copy in self._copies.every)
        if reached > self._reached:
            self._reached = reached
            self._tell(0, self._copies, certain=False)
            probes.note_change()

    def _pickled(self, tensor: Any) -> None:
        self._copies.written(tensor)
        self._arrived.pickled(tensor)

    def sent(self, item: Any) -> None:
        """Record an item that is sent to another process."""
        from pytest_gradguard.runtime.pitfalls.kept import returned

        if self._copies.passes:
            returned.record_sent(self._copies, item)
            self._tell(0, self._copies)
        self._arrived.sent(item)

    def tell(self) -> None:
        """At the end, report to the parent what is left here."""
        copies = backwards.take(self._items)
        if copies is not None:
            self._tell(0, copies)
        self._arrived.ended()

    def _tell(self, message: int, copies: Copies, certain: bool = True) -> None:
        """Report the gradients of the tensors of a message; 0: of the process's own arguments."""
        from pytest_gradguard.runtime.pitfalls.kept import kept_gradients

        outcome = kept_gradients.outcome_of(copies, self._items, ())
        if outcome.left or outcome.returned or message in self._reported:
            self._reported = {message} | (self._reported & {0})
            self._reporter.report("gg106", outcome, certain, message)
