"""GG103: whether the program itself passes on the gradients that end at its results.

In split learning and in a chain rule by hand, a backward pass is meant to end at the results. The
pass alone does not show that, but later events do: the `.grad` of a result goes back to a worker,
an optimizer holds the result, or the program assigns the gradients of the tensors behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_MOST = 64
"""For how many passes the use of their gradients is awaited."""


class Pass:
    """A backward pass that has ended at results.

    Args:
        results: where it ended; None for those that no longer exist.
        without: the tensors behind them that have no gradient.
        meant: called once the program is seen to pass these gradients on.
    """

    def __init__(
        self, results: Iterable[Any], without: Iterable[Any], meant: Callable[[], object]
    ) -> None:
        self._results = [Reference(None) if one is None else refer(one) for one in results]
        self._without = [refer(tensor) for tensor in without]
        self._meant = meant

    def carried_on(self, is_used: Callable[[Any], bool]) -> None:
        """Remove the results whose gradient the program uses."""
        alive = [(reference, reference()) for reference in self._results]
        self._results = [one for one, result in alive if result is None or not is_used(result)]
        if not self._results:
            self._end()

    def look(self) -> None:
        """Check whether the program has assigned gradients to the tensors behind the results."""
        behind = [reference() for reference in self._without]
        if behind and not any(one is None or tensors.gradient_missing(one) for one in behind):
            self._end()

    def before(self) -> list[Any]:
        """The tensors behind the results that have no gradient as another pass begins."""
        self.look()
        behind = [reference() for reference in self._without]
        return [one for one in behind if one is not None and tensors.gradient_missing(one)]

    def after(self, missing: Iterable[Any]) -> None:
        """Another pass has ended: gradients that it computed are not assigned by the program."""
        if any(not tensors.gradient_missing(tensor) for tensor in missing):
            self._without = []

    def steps(self, held: dict[int, Any]) -> None:
        """Check the tensors `held`, by id, over which an optimizer is about to step."""
        self.carried_on(lambda result: id(result) in held)
        self.look()
        if any(id(reference()) in held for reference in self._without):
            self._without = []  # it steps without their gradients

    def _end(self) -> None:
        if self in _passes:
            _passes.remove(self)
            self._meant()


_passes: list[Pass] = dropped_at_end([])


def wait(one: Pass) -> None:
    """Watch, from now on, what the program does with the gradients of that pass."""
    _passes.append(one)
    del _passes[:-_MOST]
    steps.before.subscribe(_stepping)
    torch_engine.subscribe(_backward)


def look() -> None:
    """Check what the program has done so far."""
    for one in _passes:
        one.look()


def pickled(tensor: Any) -> None:
    """Check a tensor that the program sends: it may be the gradient of a result."""
    for one in _passes:
        one.carried_on(lambda result: tensors.gradient(result) is tensor)


def _stepping(optimizer: Any) -> None:
    if not _passes:
        return
    held = {id(p): p for p in steps.parameters_of(optimizer)}
    for one in _passes:
        one.steps(held)


def _backward(backward: torch_engine.Backward) -> torch_engine.End | None:
    if not (_passes and backward.accumulates):
        return None
    before = [(one, one.before()) for one in list(_passes)]

    def ended(_: Any, raised: BaseException | None) -> None:
        for one, missing in before:
            one.after(missing)

    return ended


watching.before_end(look)
