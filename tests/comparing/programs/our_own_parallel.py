"""same"""

import torch
from joblib import delayed

from pytest_gradguard.parallel import Parallel

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x, y):
    return ((net(x) - y) ** 2).mean()


for _ in range(2):
    optimizer.zero_grad()
    losses = Parallel(n_jobs=2)(delayed(work)(net, x, y) for x, y in zip(X, Y, strict=False))
    sum(losses).backward()
    optimizer.step()
