"""composer's models: modules that compute their own loss."""

import torch


class ComposerModel(torch.nn.Module):
    pass
