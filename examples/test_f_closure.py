"""A worker function uses a tensor of the function around it; nobody passes it as an argument.

The guard reports
    GG101  where the tasks leave: the tensor `scale` is pickled along with `scaled`, which uses it
    GG102  where scaled() hands back a product that had a graph
    GG103  where backward() runs: the gradient never reaches `scale`
"""

import torch
from joblib import Parallel, delayed


def test_captured_tensor_gets_no_gradient():
    scale = torch.tensor(2.0, requires_grad=True)

    def scaled(number):
        return scale * number

    results = Parallel(n_jobs=2)(delayed(scaled)(k) for k in range(1, 3))
    sum(results).backward()
    assert scale.grad is None  # with n_jobs=1 it is 3
