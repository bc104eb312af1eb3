"""CuPy's arrays say as they arrive that CUDA is initialised for them."""

from __future__ import annotations

from typing import Any

from pytest_gradguard.runtime.pitfalls.cuda.cupy import rebuild_array


def on_its_way(reduction: Any) -> Any:
    """The `reduction` of an array, rebuilt by a function of ours."""
    if not isinstance(reduction, tuple):
        return reduction
    rebuild, arguments, *rest = reduction
    return (rebuild_array, (rebuild, arguments), *rest)
