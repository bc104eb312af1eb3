"""The first difference between the notes of two runs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, NamedTuple

from pytest_gradguard.comparing.notes import BACKWARD, END, GRADIENTS, STEP, STEPPED, Note
from pytest_gradguard.comparing.sketches import Sketch, are_close, text_of

_MOMENTS = {
    BACKWARD: "after the backward pass",
    GRADIENTS: "in the gradients that were asked for",
    STEP: "in the gradients of an optimizer's step",
    STEPPED: "after an optimizer's step",
    END: "at the end of the program",
}
_THINGS = {BACKWARD: ".grad", STEP: ".grad"}


class Difference(NamedTuple):
    """The first difference between two runs.

    Attributes:
        number: the index of the note.
        kind: its moment.
        step: how many optimizer steps there were before.
        place: the program's line.
        tensor: the name of the first differing tensor; empty if the runs take different paths.
        values: of the first and of the second run, as text.
        more: how many other tensors differ there.
    """

    number: int
    kind: str
    step: int
    place: str
    tensor: str
    values: tuple[str, str]
    more: int = 0

    @property
    def moment(self) -> str:
        """The moment, in words."""
        where = f" ({self.place})" if self.place else ""
        after = f", step {self.step + 1}" if self.kind in (STEP, STEPPED) else ""
        return f"{_MOMENTS[self.kind]}{after}{where}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "moment": self.kind,
            "step": self.step + 1,
            "place": self.place,
            "tensor": self.tensor,
            "values": {"workers": self.values[0], "inline": self.values[1]},
            "more": self.more,
        }


def first(
    one: Iterable[Note], other: Iterable[Note], rtol: float, atol: float
) -> Difference | None:
    """The first difference between the notes of two runs; None without one."""
    for number, (a, b) in enumerate(zip_longest(one, other)):
        if a is None or b is None or a.kind != b.kind:
            return _parted(number, a, b)
        differing = [
            name
            for name in a.tensors
            # A tensor that only one run has is not the program's own: a worker's result is a leaf.
            if name in b.tensors
            and not are_close(a.tensors.get(name), b.tensors.get(name), rtol, atol)
        ]
        if differing:
            name = differing[0]
            pair = _texts(a.tensors.get(name), b.tensors.get(name))
            shown = name + _THINGS.get(a.kind, "")
            return Difference(number, a.kind, a.step, a.place, shown, pair, len(differing) - 1)
    return None


def _texts(a: Sketch | None, b: Sketch | None) -> tuple[str, str]:
    one, other = text_of(a), text_of(b)
    if one == other and a is not None and b is not None:
        return f"{one}, digest {a.digest.hex()}", f"{other}, digest {b.digest.hex()}"
    return one, other


def _parted(number: int, a: Note | None, b: Note | None) -> Difference:
    known: Any = a or b
    said = tuple(_moment(one) for one in (a, b))
    return Difference(number, known.kind, known.step, known.place, "", (said[0], said[1]))


def _moment(note: Note | None) -> str:
    if note is None:
        return "the program has ended"
    return f"{_MOMENTS[note.kind]} ({note.place})" if note.place else _MOMENTS[note.kind]
