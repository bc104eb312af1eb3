"""The backward passes of a worker process: which tensors that came with its tasks get a gradient.

The tensors are looked for once in a batch of tasks, before its first backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.kernel import probes, running
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.references import Reference, refer

if TYPE_CHECKING:
    from pytest_gradguard.runtime.frameworks.torch.copies import Copies

_known: dict[int, tuple[Any, Copies]] = {}
_loaded: dict[int, list[Reference]] = {}
"""By the ids of running tasks: what they have loaded themselves, before their first pass."""


def watch(items: Any, copies: Copies) -> None:
    """Watch backward passes in this process, which runs the tasks `items` and nothing else."""
    running.enter(items)
    _known[id(items)] = (items, copies)
    apply()


def load(leaf: Any) -> None:
    """The tasks that run here have loaded `leaf`, from a file or otherwise."""
    batches = running.batches()
    if len(batches) == 1:
        (items,) = batches
        if id(items) in _known:
            _known[id(items)][1].add([leaf])
        else:
            if id(items) not in _loaded:
                _loaded.clear()  # earlier tasks are over
            _loaded.setdefault(id(items), []).append(refer(leaf))


def take(items: Any) -> Copies | None:
    """What the tasks `items` were given, where a backward pass has run meanwhile; asked once."""
    _loaded.pop(id(items), None)
    known = _known.pop(id(items), None)
    if known is None:
        return None
    known[1].ended()
    return known[1]


def known(items: Any) -> Copies | None:
    """What the tasks `items` were given, where a backward pass has run meanwhile."""
    return _known[id(items)][1] if id(items) in _known else None


def apply() -> None:
    """Watch backward passes, where torch is loaded."""
    if "torch.autograd" in sys.modules:
        torch_engine.subscribe(_backward)


def undo() -> None:
    """Watch them no longer."""
    torch_engine.unsubscribe(_backward)
    _known.clear()
    _loaded.clear()


def answered(inputs: Collection[Any]) -> None:
    """Tasks of a call that a task here has made have returned the gradients of `inputs`."""
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
    """What the tasks were given that run now, in any thread."""
    probes.rouse("gg106")
    found = []
    for items in running.batches():
        known = _known.get(id(items))
        if known is None:
            try:
                from pytest_gradguard.runtime.frameworks.torch.copies import Copies

                known = _known[id(items)] = (items, Copies(items))
                loaded = [reference() for reference in _loaded.pop(id(items), ())]
                known[1].add(leaf for leaf in loaded if leaf is not None)
            except Exception as error:
                fault(error)
                continue
        found.append(known[1])
    return found
