"""GG103: which of the tensors that arrive here had a graph in a worker, or may have had one.

Workers tell of what they pickle themselves by its values. A program without a guard tells nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.kernel import calls
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.kernel.state import GuardState, dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.pitfalls.lost import gg103, pickled_leaves, provenance
from pytest_gradguard.runtime.pitfalls.lost.lacking import Severed

_MOST_TOLD = 1_024


class _State(GuardState):
    """What may arrive.

    Attributes:
        told: by their values: what workers pickled with a graph, and whether they handed it over.
        programs: those that this one has started, and what runs there.
        processes: called before checking for tensors reported by a process.
    """

    def __init__(self) -> None:
        self.told: dict[str, tuple[Severed, bool]] = {}
        self.programs: deque[tuple[calls.Call, Task]] = deque(maxlen=16)
        self.processes: list[Callable[[], object]] = []


_state = dropped_at_end(_State())


def expect(hear: Callable[[], object]) -> None:
    """Look, from now on, at what arrives of processes that the program has started.

    Args:
        hear: has those that have told something come by `told`.
    """
    if hear not in _state.processes:
        _state.processes.append(hear)
    _look()


def told(call: calls.Call, sent: gg103.Sent) -> None:
    """Know what a worker of `call` has itself pickled with a graph, should it arrive here."""
    known = _state.told
    known[sent.values] = (Severed(call, sent.note), sent.handed)
    while len(known) > _MOST_TOLD:
        del known[next(iter(known))]
    for leaf in pickled_leaves.of(sent.leaves.values()):
        call.ships_gradients = True
        call.remember_shipped(leaf, "")
    if sent.lineage == LINEAGE:
        call.remembered.setdefault(provenance.INHERITED, {}).update(sent.leaves)
    _look()


def started(call: calls.Call, task: Task) -> None:
    """Look, from now on, at what arrives of a program without a guard, which `call` starts."""
    _state.programs.append((call, task))
    _look()


def _look() -> None:
    provenance.origins.subscribe(_origin)
    provenance.apply()


def _origin(tensor: Any, values: str, rebuilding: FrameType) -> Severed | None:
    for hear in _state.processes:
        hear()
    severed, handed = _state.told.get(values, (None, False))
    if severed is None and _state.programs and not pickled_leaves.is_own(values):
        severed = _of_program(tensor)
    if severed is None or not provenance.may_be(severed, rebuilding):
        return None
    if handed:
        calls.note_crossed(severed.call.token, "GG102", severed.note)
    return severed


def _of_program(tensor: Any) -> Severed | None:
    """What `tensor` may have come back as from the last program that was started."""
    call, task = _state.programs[-1]
    for leaf in pickled_leaves.alive():
        call.remember_shipped(leaf, "")
    if not call.shipped:
        return None
    about = tensors.describe(tensor)
    note = Object(path="result", task=task, description=about, history=None, plain=True)
    return Severed(call, note, certain=False)
