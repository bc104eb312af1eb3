"""GG105: a tape records in the calling thread, and its tasks use TensorFlow in other threads.

This module is light: a worker without need of TensorFlow does not import it (see `calls`).
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.pitfalls.tapes.notes import Note

_EXACTLY = 8


def ask(call: Any) -> bool | None:
    """Whether a tape, or a forward accumulator, records in this thread."""
    if not may_record():
        return None
    from pytest_gradguard.runtime.pitfalls.tapes import calls as tapes

    return tapes.begin(call)


def may_record() -> bool:
    """Whether a tape of the user or the guard records in this thread."""
    if not _loaded():
        return False
    from tensorflow.python import pywrap_tfe

    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def ship(call: Any, items: Any) -> Any:
    """Return the tensors to follow, and the holders of variables, in the tasks of a batch."""
    from pytest_gradguard.runtime.pitfalls.tapes import calls as tapes

    return tapes.ship(call, items, _EXACTLY)


def begin(asked: Any, process: bool) -> After | None:
    """Follow what the tasks of a batch compute, from before they run."""
    if not _loaded():
        return None
    from pytest_gradguard.runtime.pitfalls.tapes import inside

    watched = inside.Inside((_EXACTLY, (), ()) if asked is True else asked, process)

    def after(items: Any, results: Any, error: BaseException | None) -> Any:
        return watched.end(items, results)

    return after


def on_note(call: Any, note: Note) -> None:
    """Record, in the parent, what was observed where tasks ran."""
    from pytest_gradguard.runtime.pitfalls.tapes import calls as tapes

    tapes.on_note(call, note)


def _loaded() -> bool:
    return hasattr(sys.modules.get("tensorflow"), "GradientTape")
