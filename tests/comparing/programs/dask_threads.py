"""same"""

import dask
import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x):
    return net(x).mean()


for _ in range(2):
    tasks = [dask.delayed(work)(net, x) for x in X]
    losses = dask.compute(*tasks, scheduler="threads", num_workers=2)
    optimizer.zero_grad()
    (sum(losses) + net.weight.pow(2).sum()).backward()
    optimizer.step()
