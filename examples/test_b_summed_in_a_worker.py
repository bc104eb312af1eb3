"""The workers reduce a tensor to one number each, as tensors, and the parent runs backward.

The guard reports GG101, GG102 and GG103, as in the first example. That the worker only reads the
tensor and returns something new makes no difference: the way back to x goes through its graph.
"""

import torch
from joblib import Parallel, delayed


def total(tensor, number):
    return torch.sum(tensor + number)


def test_sums_have_forgotten_their_source():
    x = torch.ones(4, requires_grad=True)
    totals = Parallel(n_jobs=2)(delayed(total)(x.clone(), k) for k in range(2))
    torch.stack(totals).mean().backward()
    assert x.grad is None
    assert all(value.grad is not None for value in totals)  # here the gradient ended
