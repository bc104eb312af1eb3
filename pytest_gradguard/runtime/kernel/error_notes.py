"""Notes that the guard adds to errors of the program: their meaning, and the fix.

The error itself, its class and its message, are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_gradguard.reports.printable import shown_lines
from pytest_gradguard.runtime.kernel.faults import fault, warn

_MARK = "gradguard: "


def add(error: BaseException, text: str) -> None:
    """Add a note to `error`, once; before Python 3.11, which shows none, also warn."""
    try:
        note = shown_lines(_MARK + text)
        if note in notes_of(error):
            return
        if hasattr(error, "add_note"):
            error.add_note(note)
        else:
            error.__notes__ = [*notes_of(error), note]  # type: ignore[attr-defined]
            warn(f"{type(error).__name__}: {text}")
    except Exception as mistake:
        fault(mistake)


def notes_of(error: BaseException) -> list[str]:
    """The notes of `error`."""
    notes = getattr(error, "__notes__", None)
    return list(notes) if isinstance(notes, (list, tuple)) else []


@contextmanager
def without(error: BaseException) -> Iterator[None]:
    """A block in which `error` has none of the guard's notes, for printing it again."""
    notes = notes_of(error)
    others = [note for note in notes if not (isinstance(note, str) and note.startswith(_MARK))]
    if others == notes:
        yield
        return
    error.__notes__ = others  # type: ignore[attr-defined]
    try:
        yield
    finally:
        error.__notes__ = notes  # type: ignore[attr-defined]


def explained(error: BaseException) -> bool:
    """Whether the guard has added a note to `error`."""
    return any(isinstance(note, str) and note.startswith(_MARK) for note in notes_of(error))
