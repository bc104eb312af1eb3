"""GG105: a tape records in the calling thread, and its tasks work with TensorFlow elsewhere.

This module is light: a worker that has no need of TensorFlow does not import it (see `tapes`).
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.looks import After


def ask(call: Any) -> bool | None:
    """Whether a tape, or a forward accumulator, records in this thread."""
    if not _loaded():
        return None
    from tensorflow.python import pywrap_tfe

    if pywrap_tfe.TFE_Py_TapeSetIsEmpty():
        return None
    from pytest_gradguard.runtime.tapes import calls as tapes

    return tapes.begin(call)


def ship(call: Any, items: Any) -> None:
    """Look for what the tasks of a batch get."""
    from pytest_gradguard.runtime.tapes import calls as tapes

    tapes.leaves(call, items)


def begin(asked: bool, process: bool) -> After:
    """Let TensorFlow note which variables are read, before the tasks of a batch."""
    watcher: Any = None
    if _loaded():
        from pytest_gradguard.runtime.tapes import reads

        watcher = reads.Reads()

    def after(items: Any, results: Any, error: BaseException | None) -> Any:
        if not _loaded():
            return None
        from pytest_gradguard.runtime.tapes import calls as tapes

        return tapes.look(items, results, watcher, process)

    return after


def heard(call: Any, note: Any) -> None:
    """Judge, in the parent, what was seen where tasks ran."""
    from pytest_gradguard.runtime.tapes import calls as tapes

    tapes.heard(call, note)


def undo() -> None:
    """Leave TensorFlow as it was."""
    tapes: Any = sys.modules.get("pytest_gradguard.runtime.tapes.calls")
    if tapes is not None:
        tapes.undo()


def _loaded() -> bool:
    return hasattr(sys.modules.get("tensorflow"), "GradientTape")
