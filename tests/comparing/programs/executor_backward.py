"""differs GG106"""

from concurrent.futures import ProcessPoolExecutor

import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x, y):
    ((net(x) - y) ** 2).mean().backward()
    return 1


with ProcessPoolExecutor(2) as executor:
    for _ in range(2):
        optimizer.zero_grad()
        futures = [executor.submit(work, net, x, y) for x, y in zip(X, Y, strict=False)]
        assert [future.result() for future in futures] == [1, 1]
        optimizer.step()
