"""TensorFlow."""

import sys
from collections.abc import Collection

from pytest_gradguard.runtime.kernel.framework import Framework


class TensorFlow(Framework):
    """TensorFlow: its eager tensors and variables report by themselves."""

    name = "tensorflow"
    title = "TensorFlow"
    module = "tensorflow.python.framework.ops"
    complete = ("tensorflow", "GradientTape")
    packages = ("tensorflow",)
    default_gpu = True
    on_tapes = True
    waits_in = ("tensorflow", "keras")
    implementation = f"{__name__}.tensors"
    more_reductions = (implementation,)
    gpu_users: Collection[str] = ()
    """The frameworks other than torch that were seen to have CUDA up in this process."""

    def tells_results(self) -> bool:
        """Whether there is a GPU; its results need no inspection otherwise."""
        return self.module in sys.modules and bool(self.gpu_users)

    def threads_are_up(self) -> bool:
        """Whether its runtime has been started in this process, or before its fork."""
        context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
        return getattr(context, "_context_handle", None) is not None


FRAMEWORK = TensorFlow()
