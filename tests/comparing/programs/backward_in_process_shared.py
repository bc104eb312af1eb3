"""differs GG106"""

import torch
import torch.multiprocessing as mp

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


net.share_memory()


def work(net, x, y):
    ((net(x) - y) ** 2).mean().backward()


for _ in range(2):
    optimizer.zero_grad()
    processes = [mp.Process(target=work, args=(net, x, y)) for x, y in zip(X, Y, strict=False)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    optimizer.step()
