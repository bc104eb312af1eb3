"""A tensor is changed in workers, and the parent runs backward through what comes back.

The guard reports
    GG101  where x.clone() leaves for the workers: its history stays behind
    GG102  where add() hands back its sum: pickling drops the sum's graph
    GG103  where backward() runs: the gradient ends at the sums and never reaches x
Nothing fails by itself: backward() raises no error, and x.grad stays None.
"""

import torch
from joblib import Parallel, delayed


def add(tensor, number):
    return tensor + number


def test_gradient_ends_at_the_workers():
    x = torch.ones(4, requires_grad=True)
    first, second = Parallel(n_jobs=2)(delayed(add)(x.clone(), k) for k in range(2))
    (first + second).mean().backward()
    assert x.grad is None  # with n_jobs=1 it is 0.5 everywhere
