"""same"""

import torch
from joblib import Parallel, delayed

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x, y):
    x -= x.mean(0)
    inputs = torch.as_tensor(x)
    return torch.autograd.grad(((net(inputs) - y) ** 2).mean(), list(net.parameters()))


data = [x.numpy() for x in X]
for _ in range(2):
    outputs = Parallel(n_jobs=2)(delayed(work)(net, x, y) for x, y in zip(data, Y, strict=False))
    for p, *gradients in zip(net.parameters(), *outputs, strict=False):
        p.grad = sum(gradients)
    optimizer.step()
