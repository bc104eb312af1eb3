"""CuPy: no gradients, and all of its arrays lie on a GPU."""

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
    """Rebuilds an array in a worker, given how CuPy does it, and may look at what that needs."""

    def device(self, array: Any) -> str:
        """The GPU on which `array` lies."""
        return f"cuda:{array.data.device_id}"

    def on_gpu(self, array: Any) -> bool:
        """It always does."""
        return True

    def on_its_way(self, reduction: Any) -> Any:
        """The `reduction` of an array, rebuilt by a function of ours."""
        if self.rebuild is None or not isinstance(reduction, tuple):
            return reduction
        rebuild, arguments, *rest = reduction
        return (self.rebuild, (rebuild, arguments), *rest)


FRAMEWORK = CuPy()
