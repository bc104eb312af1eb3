"""same"""

from concurrent.futures import ProcessPoolExecutor

import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x, y):
    x.mul_(torch.rand(1))
    gradients = torch.autograd.grad(((net(x) - y) ** 2).mean(), list(net.parameters()))
    return [g.numpy() for g in gradients]


with ProcessPoolExecutor(2) as executor:
    for _ in range(2):
        outputs = list(executor.map(work, [net] * 2, X.clone().unbind(), Y, chunksize=2))
        for p, *gradients in zip(net.parameters(), *outputs, strict=False):
            p.grad = torch.as_tensor(sum(gradients))
        optimizer.step()
