"""same"""

import torch
from joblib import Parallel, delayed

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x, y):
    ((net(x) - y) ** 2).mean().backward()
    return net.weight.grad.norm().item()


for _ in range(2):
    optimizer.zero_grad()
    ((net(X[0]) - Y[0]) ** 2).mean().backward()
    Parallel(n_jobs=2)(delayed(work)(net, x, y) for x, y in zip(X, Y, strict=False))
    optimizer.step()
