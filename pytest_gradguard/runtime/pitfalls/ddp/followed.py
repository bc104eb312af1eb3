"""Parameters that have to be equal on all ranks of a group, and this rank's notes of them."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_gradguard.runtime.pitfalls.ddp import sketches
from pytest_gradguard.runtime.pitfalls.ddp.notes import Note, Notes

FIRST = 8
"""How many steps are compared before only powers of two are."""
BEGIN, END = 0, -1
"""The notes before the first step and at the end; others have the number of steps."""
_KEPT = 8
"""How many notes of each kind are kept for ranks that are behind."""


def is_sampled(step: int) -> bool:
    """Whether the parameters are compared after that many steps."""
    return step <= FIRST or not step & (step - 1)


class _Own(NamedTuple):
    """A note of this rank."""

    header: dict[str, Any]
    values: Any


class Comparison(NamedTuple):
    """A note of another rank, compared with this rank's.

    Attributes:
        step: after how many steps; or `BEGIN`, `END`.
        rank: the number of this rank.
        header: this rank's header of the note.
        note: the other rank's note.
        differences: the parameters that are not equal.
        equal_at: the last step after which they were equal.
    """

    step: int
    rank: int
    header: dict[str, Any]
    note: Note
    differences: Sequence[sketches.Difference]
    equal_at: int | None


class Followed:
    """Parameters that one optimizer steps, and whose gradients the ranks of a group average.

    Args:
        parameters: by name.
        ranks: the group's, as global rank numbers.
        about: distinguishes parameters of equal names and shapes; equal on all ranks.

    Attributes:
        names: those of the parameters.
        subject: equal on all ranks for corresponding parameters.
        steps: how many steps were made.
    """

    def __init__(self, parameters: Mapping[str, Any], ranks: Sequence[int], about: object) -> None:
        self.names = list(parameters)
        self.steps = 0
        self._ranks = ranks
        self._references = [weakref.ref(one) for one in parameters.values()]
        self._forms = [sketches.form(one) for one in parameters.values()]
        shapes = [list(one.shape) for one in parameters.values()]
        key = json.dumps([self.names, shapes, list(ranks), about]).encode()
        self.subject = hashlib.sha256(key).hexdigest()[:24]
        self._written: list[int] = []
        self._waiting: dict[int, _Own] = {}
        self._compared: set[tuple[int, int]] = set()
        self._equal_at: dict[int, int] = {}
        self._state: object = None
        self._stopped = False

    def parameters(self) -> list[Any]:
        """The parameters; none if some no longer exist."""
        living = [one() for one in self._references]
        return [] if None in living else living

    def stepped(self) -> None:
        """Count a step of the optimizer."""
        self.steps += 1
        self._state = self._state_now()

    def _state_now(self) -> object:
        first = self._references[0]()
        return None if first is None else (first._version, first.data_ptr())

    @property
    def is_untouched(self) -> bool:
        """Whether the program has left the parameters alone since the last step."""
        return self._state is not None and self._state == self._state_now()

    def note(self, notes: Notes, step: int, header: dict[str, Any]) -> None:
        """Write a note of the parameters as they are after `step`."""
        parameters = [] if self._stopped else self.parameters()
        if not parameters or not sketches.are_readable(parameters):
            return
        values = sketches.sketch(parameters)
        notes.write(self._about(step), header, values)
        self._waiting[step] = _Own(header, values)
        self._written.append(step)
        while len(self._written) > _KEPT:
            earliest = self._written.pop(0)
            self._waiting.pop(earliest, None)
            notes.forget(self._about(earliest))

    def _about(self, step: int) -> str:
        return f"{self.subject}.{'end' if step == END else step}"

    def compare(self, notes: Notes) -> Iterator[Comparison]:
        """Compare with the present notes of other ranks, each once."""
        present = notes.present() if self._waiting else []
        for step, (header, values) in list(self._waiting.items()):
            heard = 0
            for note in notes.others(self._about(step), len(values), present):
                heard += 1
                if note.rank not in self._ranks or (step, note.rank) in self._compared:
                    continue
                self._compared.add((step, note.rank))
                after = self.steps if step == END else step
                found = sketches.differences(self._forms, values, note.values, after)
                yield Comparison(
                    step, notes.rank, header, note, found, self._equal_at.get(note.rank)
                )
                if not found and step != END:
                    self._equal_at[note.rank] = step
            if heard >= len(self._ranks) - 1:
                self._waiting.pop(step, None)

    def stop(self) -> None:
        """Write no more notes, and compare with no rank."""
        self._stopped = True
        self._waiting.clear()
