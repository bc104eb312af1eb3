"""PyTorch."""

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.framework import Framework


class Torch(Framework):
    """PyTorch: its tensors report by themselves."""

    name = "torch"
    title = "PyTorch"
    module = "torch.nn.parameter"
    complete = ("torch.nn.parameter", "Parameter")
    packages = ("torch",)
    backwards = True
    implementation = f"{__name__}.tensors"
    more_reductions = (f"{__name__}.tensors", f"{__name__}.sharing", f"{__name__}.modules")

    def shares_memory(self, array: Any) -> bool:
        """Whether `array` has one of torch's own types: subclasses are pickled as usual."""
        sharing = sys.modules.get(f"{__name__}.sharing")
        return sharing is not None and type(array) in sharing.KINDS


FRAMEWORK = Torch()
