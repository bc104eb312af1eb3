"""A module with a global that the program which imports it changes."""

import torch

weight = torch.ones(1)


def read():
    return weight.item()
