"""The backward passes of a worker process: which tensors of its tasks get a gradient.

The tensors are searched for once in a batch of tasks, before its first backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.kernel import probes, running
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end

if TYPE_CHECKING:
    from pytest_gradguard.runtime.frameworks.torch.copies import Copies


class _State(GuardState):
    """The batches of tasks that run here, by id.

    Attributes:
        given: the tasks, and the tensors passed to them, once a backward pass has run.
        loaded: leaves that they have loaded themselves before their first pass.
    """

    def __init__(self) -> None:
        self.given: dict[int, tuple[Any, Copies]] = {}
        self.loaded: dict[int, list[Reference]] = {}


_state = dropped_at_end(_State())


def watch(items: Any, copies: Copies) -> None:
    """Watch backward passes in this process, which runs only the tasks `items`."""
    running.enter(items)
    _state.given[id(items)] = (items, copies)
    apply()


def load(leaf: Any) -> None:
    """Record that the running tasks have loaded `leaf`, from a file or otherwise."""
    batches = running.batches()
    if len(batches) == 1:
        (items,) = batches
        if id(items) in _state.given:
            _state.given[id(items)][1].add([leaf])
        else:
            if id(items) not in _state.loaded:
                _state.loaded.clear()  # earlier tasks have ended
            _state.loaded.setdefault(id(items), []).append(refer(leaf))


def take(items: Any) -> Copies | None:
    """Remove and return the tensors passed to `items`, if a backward pass has run since."""
    _state.loaded.pop(id(items), None)
    known = _state.given.pop(id(items), None)
    if known is None:
        return None
    known[1].ended()
    return known[1]


def known(items: Any) -> Copies | None:
    """The tensors passed to `items`, if a backward pass has run since."""
    return _state.given[id(items)][1] if id(items) in _state.given else None


def apply() -> None:
    """Watch backward passes, if torch is loaded."""
    if "torch.autograd" in sys.modules:
        torch_engine.subscribe(_backward)


def answered(inputs: Collection[Any]) -> None:
    """Record that tasks of a nested call have returned the gradients of `inputs`."""
    if running.batches():
        for copies in _given():
            copies.returned(inputs, [None] * len(inputs))


def _backward(backward: torch_engine.Backward) -> torch_engine.End | None:
    if not backward.accumulates:  # `autograd.grad` only returns gradients
        return _returned(backward)
    given = _given()

    def ended(_: Any, raised: BaseException | None) -> None:
        if raised is None:
            for copies in given:
                copies.backward_ended(backward.outputs)

    return ended


def _returned(backward: torch_engine.Backward) -> torch_engine.End | None:
    parameter = sys.modules["torch.nn.parameter"].Parameter
    if all(isinstance(one, parameter) for one in backward.inputs):
        return None
    given = _given()

    def ended(gradients: Any, raised: BaseException | None) -> None:
        if raised is None:
            for copies in given:
                copies.returned(backward.inputs, gradients)

    return ended


def _given() -> list[Copies]:
    """The tensors passed to the tasks that run now, in any thread."""
    probes.activate("gg106")
    found = []
    for items in running.batches():
        known = _state.given.get(id(items))
        if known is None:
            try:
                from pytest_gradguard.runtime.frameworks.torch.copies import Copies

                known = _state.given[id(items)] = (items, Copies(items))
                loaded = [reference() for reference in _state.loaded.pop(id(items), ())]
                known[1].add(leaf for leaf in loaded if leaf is not None)
            except Exception as error:
                fault(error)
                continue
        found.append(known[1])
    return found
