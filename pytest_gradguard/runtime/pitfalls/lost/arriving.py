"""GG103: which arriving tensors had a graph in a worker, or may have had one.

Workers report the tensors that they pickle themselves, by value. An unguarded program reports none.
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

_MOST_SENT = 1_024


class _State(GuardState):
    """Tensors that may arrive.

    Attributes:
        sent: by digest: tensors that workers pickled with a graph, and whether they sent them.
        programs: the started programs, and their tasks.
        processes: called before checking for tensors reported by a process.
    """

    def __init__(self) -> None:
        self.sent: dict[str, tuple[Severed, bool]] = {}
        self.programs: deque[tuple[calls.Call, Task]] = deque(maxlen=16)
        self.processes: list[Callable[[], object]] = []


_state = dropped_at_end(_State())


def expect(hear: Callable[[], object]) -> None:
    """From now on, match arriving tensors with the reports of started processes.

    Args:
        hear: receives the reports, which call `remember_sent`.
    """
    if hear not in _state.processes:
        _state.processes.append(hear)
    _look()


def remember_sent(call: calls.Call, sent: gg103.Sent) -> None:
    """Record a tensor with a graph that a worker of `call` pickled itself, in case it arrives."""
    known = _state.sent
    known[sent.values] = (Severed(call, sent.note), sent.handed)
    while len(known) > _MOST_SENT:
        del known[next(iter(known))]
    for leaf in pickled_leaves.of(sent.leaves.values()):
        call.ships_gradients = True
        call.remember_shipped(leaf, "")
    if sent.lineage == LINEAGE:
        call.remembered.setdefault(provenance.INHERITED, {}).update(sent.leaves)
    _look()


def started(call: calls.Call, task: Task) -> None:
    """From now on, check what arrives from an unguarded program that `call` starts."""
    _state.programs.append((call, task))
    _look()


def _look() -> None:
    provenance.origins.subscribe(_origin)
    provenance.apply()


def _origin(tensor: Any, values: str, rebuilding: FrameType) -> Severed | None:
    for hear in _state.processes:
        hear()
    severed, handed = _state.sent.get(values, (None, False))
    if severed is None and _state.programs and not pickled_leaves.is_own(values):
        severed = _of_program(tensor)
    if severed is None or not provenance.may_be(severed, rebuilding):
        return None
    if handed:
        calls.note_crossed(severed.call.token, "GG102", severed.note)
    return severed


def _of_program(tensor: Any) -> Severed | None:
    """What `tensor` may be of the program started last."""
    call, task = _state.programs[-1]
    for leaf in pickled_leaves.alive():
        call.remember_shipped(leaf, "")
    if not call.shipped:
        return None
    about = tensors.describe(tensor)
    note = Object(path="result", task=task, description=about, history=None, plain=True)
    return Severed(call, note, certain=False)
