"""PyTorch."""

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


FRAMEWORK = Torch()
