"""A process that the program starts itself tells which gradients it has kept: GG106.

`worker_gradients` reads that when an optimizer steps. What the process puts into queues and
connections after a backward pass counts as what a task returns; as many such processes answer in a
loop for as long as the program trains, it tells then, too. After its first backward passes it tells
what holds should it be killed before its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.kernel import probes
from pytest_gradguard.runtime.kernel.dispatch.telling import Teller
from pytest_gradguard.runtime.pitfalls.kept import backwards

if TYPE_CHECKING:
    from pytest_gradguard.runtime.frameworks.torch.copies import Copies


class Watched:
    """What this process does with the tensors that it was given.

    Args:
        items: its function, and its arguments, as the only task.
        teller: tells the parent.
    """

    def __init__(self, items: list[tuple[Any, Any, Any]], teller: Teller) -> None:
        from pytest_gradguard.runtime.frameworks.torch.copies import Copies

        self._items = items
        self._teller = teller
        self._copies = Copies(self._items, shared=True)
        self._has_told = False
        self._reached = 0
        torch_engine.subscribe(self._backward)  # first: it is told last of the end of a pass
        backwards.watch(self._items, self._copies)

    def _backward(self, backward: torch_engine.Backward) -> torch_engine.End | None:
        return self._passed if backward.accumulates else None

    def _passed(self, _: Any, raised: BaseException | None) -> None:
        """Tell, after a pass that gave more tensors a gradient, what they are."""
        reached = sum(copy.digest is not None for copy in self._copies.every)
        if reached > self._reached:
            self._reached = reached
            self._tell(self._copies, certain=False)
            probes.note_change()

    def sent(self, item: Any) -> None:
        """Take what goes to another process."""
        from pytest_gradguard.runtime.pitfalls.kept import returned

        if self._copies.passes:
            kept = returned.kept(self._copies, [item])
            self._copies.sent.update(
                id(copy) for copy in self._copies.with_gradient if copy not in kept
            )
            self._tell(self._copies)

    def tell(self) -> None:
        """Tell the parent what stays here, at the end."""
        copies = backwards.take(self._items)
        if copies is not None:
            self._tell(copies)

    def _tell(self, copies: Copies, certain: bool = True) -> None:
        from pytest_gradguard.runtime.pitfalls.kept import kept_gradients

        outcome = kept_gradients.outcome_of(copies, self._items, ())
        if self._has_told or outcome.left or outcome.returned:
            self._has_told = True
            self._teller.tell("gg106", outcome, certain)
