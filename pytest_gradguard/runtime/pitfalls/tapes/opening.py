"""Stands beside gradient tapes from when they open, as long as somebody listens.

This module is light: it is in place from when TensorFlow is imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.faults import attempt, fault
from pytest_gradguard.runtime.kernel.patching import Patch, Patches

_patches: Patches | None = None


def _opening(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def push(self: Any) -> Any:
        result = original(self)
        if attempt(collector.innermost) is not None:
            try:
                from pytest_gradguard.runtime.pitfalls.tapes import following

                following.opened(self)
            except Exception as error:
                fault(error)
        return result

    return push


def apply() -> None:
    """Hear of every gradient tape that records."""
    global _patches
    if _patches is None:
        tape = sys.modules["tensorflow.python.eager.backprop"].GradientTape
        _patches = Patches([Patch(tape, "_push_tape", _opening)])
    _patches.apply()


def undo() -> None:
    """Leave TensorFlow as it was."""
    if _patches is not None:
        _patches.undo()
    following: Any = sys.modules.get("pytest_gradguard.runtime.pitfalls.tapes.following")
    if following is not None:
        following.undo()
    own: Any = sys.modules.get("pytest_gradguard.runtime.pitfalls.tapes.own")
    if own is not None:
        own.undo(own.TASKS)
