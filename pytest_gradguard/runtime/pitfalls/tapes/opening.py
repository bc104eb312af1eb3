"""Stands beside gradient tapes from when they open, as long as somebody listens.

This module is light: it is in place from when TensorFlow is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches

_patches: Patches | None = None


def _opened(result: Any, tape: Any) -> None:
    if collector.innermost() is not None:
        from pytest_gradguard.runtime.pitfalls.tapes import following

        following.opened(tape)


def apply() -> None:
    """Hear of every gradient tape that records."""
    global _patches
    if _patches is None:
        tape = sys.modules["tensorflow.python.eager.backprop"].GradientTape
        _patches = Patches([observe(tape, "_push_tape", after=_opened)])
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
