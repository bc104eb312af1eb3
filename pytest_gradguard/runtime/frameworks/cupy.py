"""CuPy: no gradients, and all of its arrays are on a GPU."""

from collections.abc import Callable
from typing import Any

from pytest_gradguard.runtime.kernel.framework import Framework


class CuPy(Framework):
    """CuPy."""

    name = "cupy"
    title = "CuPy"
    module = "cupy"
    complete = ("cupy", "ndarray")
    packages = ("cupy",)
    types = ("ndarray",)
    default_gpu = True
    rebuild: Callable[..., Any] | None = None
    """Rebuilds an array in a worker, from CuPy's own function, and may watch CUDA there."""

    def device(self, array: Any) -> str:
        """The GPU of `array`."""
        return f"cuda:{array.data.device_id}"

    def on_gpu(self, array: Any) -> bool:
        """Always true."""
        return True

    def on_its_way(self, reduction: Any) -> Any:
        """The `reduction` of an array, with a rebuilding function of ours."""
        if self.rebuild is None or not isinstance(reduction, tuple):
            return reduction
        rebuild, arguments, *rest = reduction
        return (self.rebuild, (rebuild, arguments), *rest)


FRAMEWORK = CuPy()
