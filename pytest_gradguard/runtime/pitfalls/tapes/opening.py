"""Follows gradient tapes from when they open, while a collector is active.

This module is light: it is in place from when TensorFlow is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch


def _opened(result: Any, tape: Any) -> None:
    if collector.innermost() is not None:
        from pytest_gradguard.runtime.pitfalls.tapes import following

        following.opened(tape)


def _make() -> list[Patch]:
    tape = sys.modules["tensorflow.python.eager.backprop"].GradientTape
    return [observe(tape, "_push_tape", after=_opened)]


apply = LatePatches(_make).apply
