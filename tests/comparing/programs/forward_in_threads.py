"""same"""

import torch
from joblib import Parallel, delayed

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(x, y):
    return ((net(x) - y) ** 2).mean()


for _ in range(2):
    optimizer.zero_grad()
    losses = Parallel(n_jobs=2, backend="threading")(
        delayed(work)(x, y) for x, y in zip(X, Y, strict=False)
    )
    sum(losses).backward()
    optimizer.step()
