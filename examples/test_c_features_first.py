"""Workers make features with NumPy; the parent turns them into tensors and trains on them.

The guard reports nothing. No tensor goes to a worker or comes from one, and the whole graph is
made in the parent: this is how joblib and autograd work side by side.
"""

import numpy as np
import torch
from joblib import Parallel, delayed


def features(seed):
    return np.random.default_rng(seed).normal(size=8).astype("float32")


def test_weights_get_their_gradient():
    rows = Parallel(n_jobs=2)(delayed(features)(seed) for seed in range(4))
    data = torch.from_numpy(np.stack(rows))
    weights = torch.zeros(8, requires_grad=True)
    (data @ weights - 1).square().mean().backward()
    assert weights.grad is not None
    assert weights.grad.abs().sum() > 0
