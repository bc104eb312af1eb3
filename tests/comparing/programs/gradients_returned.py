"""same"""

import torch
from joblib import Parallel, delayed

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(x, y):
    dropped = torch.nn.functional.dropout(x)
    ((net(dropped) - y) ** 2).mean().backward()
    return [p.grad for p in net.parameters()]


for _ in range(2):
    optimizer.zero_grad()
    for gradients in Parallel(n_jobs=2)(delayed(work)(x, y) for x, y in zip(X, Y, strict=False)):
        for p, g in zip(net.parameters(), gradients, strict=False):
            p.grad = g / 2 if p.grad is None else p.grad + g / 2
    optimizer.step()
