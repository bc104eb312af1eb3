"""accelerate: prepares models for ranks, and runs their backward passes."""

from gradguard_lint.models.primitives import (
    backward,
    gathered,
    joins_group,
    prepared,
    starts_driver,
    unwrapped,
)

_PREPARE = "accelerate.Accelerator.prepare"


class _Prepares:
    """An `Accelerator`, whoever made it."""

    def backward(self, loss, **kwargs):
        backward(loss, "`accelerator.backward()`")

    def gather(self, tensor):
        return gathered(tensor, "accelerator.gather")

    def gather_for_metrics(self, input_data, use_gather_object=False):
        return gathered(input_data, "accelerator.gather_for_metrics")

    def prepare(self, *args, device_placement=None):
        return prepared(_PREPARE, *args)

    def prepare_model(self, model, *args, **kwargs):
        return prepared(_PREPARE, model)

    def prepare_optimizer(self, optimizer, *args, **kwargs):
        return prepared(_PREPARE, optimizer)

    def unwrap_model(self, model, *args, **kwargs):
        return unwrapped(model)


class Accelerator(_Prepares):
    def __init__(self, *args, **kwargs):
        joins_group("accelerate.Accelerator()")
        starts_driver("accelerate.Accelerator()", *args, **kwargs)
