"""Lightning Fabric."""

from gradguard_lint.models.primitives import backward, gathered, joins_group


class Fabric:
    def __init__(self, *args, **kwargs):
        joins_group("lightning.fabric.Fabric()")

    def backward(self, tensor, *args, **kwargs):
        backward(tensor, "`fabric.backward()`")

    def setup(self, module, *optimizers, **kwargs):
        return (module, *optimizers) if optimizers else module

    def all_gather(self, data, group=None, sync_grads=False):
        return data if sync_grads else gathered(data, "all_gather")
