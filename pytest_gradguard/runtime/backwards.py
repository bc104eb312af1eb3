"""Counts the backwards of a worker process, at the one function by which torch runs them all."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime import looks
from pytest_gradguard.runtime.faults import without_this_frame
from pytest_gradguard.runtime.patching import LatePatches, Patch

count = 0


def _make() -> list[Patch]:
    autograd: Any = sys.modules.get("torch.autograd")
    return [] if autograd is None else [Patch(autograd, "_engine_run_backward", _counting)]


_patches = LatePatches(_make)
apply = _patches.apply
"""Begin to count, where torch is loaded."""
undo = _patches.undo
"""Leave torch as it was."""


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
