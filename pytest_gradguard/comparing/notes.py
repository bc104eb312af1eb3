"""The notes of a run: gradients and parameters by name, in a file of sketches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gradguard.comparing.sketches import Sketch

BACKWARD, GRADIENTS, STEP, STEPPED, END = "backward", "gradients", "step", "stepped", "end"
"""The kinds of notes: after a backward pass, results of `autograd.grad` or a tape, the gradients
before an optimizer's step, the parameters after it, and at the end of the program."""


class Note(NamedTuple):
    """The note of one moment.

    Attributes:
        kind: the moment.
        step: how many optimizer steps there were before.
        place: the program's line.
        tensors: sketches by name; None: there is no gradient.
    """

    kind: str
    step: int
    place: str
    tensors: dict[str, Sketch | None]


class Writer:
    """Writes notes to a file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115

    def add(self, note: Note) -> None:
        """Add a note."""
        pickle.dump(note, self._file)
        self._file.flush()


def read(path: Path) -> Iterator[Note]:
    """The notes in a file, also of a run that was killed."""
    with open(path, "rb") as file:
        while True:
            try:
                note: Any = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return
            yield note
