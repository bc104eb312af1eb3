"""pytest-benchmark beside the guard: what it measures runs as it does without the guard."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel import watching
from pytest_gradguard.runtime.kernel.faults import Beside
from pytest_gradguard.runtime.kernel.patching import Patch, Patches

__all__ = ["unguarded"]

_MODULE = "pytest_benchmark.fixture"
_MEASURING = ("__call__", "pedantic")
"""The methods of the fixture `benchmark` that run the function that is measured."""


def unguarded() -> Callable[[], object]:
    """Switch the guard off while the fixture `benchmark` measures; the result takes that back."""
    kind: Any = getattr(sys.modules.get(_MODULE), "BenchmarkFixture", None)
    if kind is None:
        return lambda: None
    patches = Patches(
        [Patch(kind, name, _paused) for name in _MEASURING if name in vars(kind)], lasting=True
    )
    patches.apply()
    return patches.undo


def _paused(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def measure(*args: Any, **kwargs: Any) -> Any:
        with Beside(watching.paused):
            return original(*args, **kwargs)

    return measure
