"""PyTorch Lightning's modules, which run their own backward passes and gather from ranks."""

import torch

from gradguard_lint.models.primitives import backward, gathered


class LightningModule(torch.nn.Module):
    def manual_backward(self, loss, *args, **kwargs):
        backward(loss, "`self.manual_backward()`")

    def all_gather(self, data, group=None, sync_grads=False):
        return data if sync_grads else gathered(data, "all_gather")
