"""JAX: gradients come from transforms, not from its arrays; but these may be on a GPU."""

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.framework import Framework


class Jax(Framework):
    """JAX."""

    name = "jax"
    title = "JAX"
    module = "jax._src.array"
    complete = ("jax", "Array")
    packages = ("jax", "jaxlib")
    types = ("ArrayImpl",)
    default_gpu = True
    waits_in = packages
    waits_by = ("block_until_ready",)

    def device(self, array: Any) -> str:
        """The devices of `array`."""
        return ", ".join(sorted(str(device) for device in array.devices()))

    def threads_are_up(self) -> bool:
        """Whether a backend has been initialised, which starts its threads."""
        return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


FRAMEWORK = Jax()
