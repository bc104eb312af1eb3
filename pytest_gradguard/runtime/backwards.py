"""Counts the backwards of a worker process, at the one function by which torch runs them all."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime import looks
from pytest_gradguard.runtime.faults import without_this_frame
from pytest_gradguard.runtime.patching import Patch, Patches

count = 0
_patches: Patches | None = None


def apply() -> None:
    """Begin to count, where torch is loaded."""
    global _patches
    autograd: Any = sys.modules.get("torch.autograd")
    if autograd is None:
        return
    if _patches is None:
        _patches = Patches([Patch(autograd, "_engine_run_backward", _counting)])
    _patches.apply()


def undo() -> None:
    """Leave torch as it was."""
    if _patches is not None:
        _patches.undo()


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        global count
        count += 1
        looks.rouse("left_gradients")
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            without_this_frame(error)
            raise

    return _engine_run_backward
