"""CuPy: no gradients, and all of its arrays lie on a GPU."""

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
    implementation = f"{__name__}.arriving"

    def device(self, array: Any) -> str:
        """The GPU on which `array` lies."""
        return f"cuda:{array.data.device_id}"

    def on_gpu(self, array: Any) -> bool:
        """It always does."""
        return True


FRAMEWORK = CuPy()
