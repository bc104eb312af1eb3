"""same"""

import torch
import torch.multiprocessing as mp

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


queue = mp.Queue()


def work(i, net, x, y):
    ((net(x) - y) ** 2).mean().backward()
    queue.put((i, [p.grad.numpy() for p in net.parameters()]))


for _ in range(2):
    optimizer.zero_grad()
    processes = [mp.Process(target=work, args=(i, net, X[i], Y[i])) for i in range(2)]
    for process in processes:
        process.start()
    results = sorted((queue.get() for _ in processes), key=lambda one: one[0])
    for process in processes:
        process.join()
    for _, gradients in results:
        for p, g in zip(net.parameters(), map(torch.as_tensor, gradients), strict=False):
            p.grad = g if p.grad is None else p.grad + g
    optimizer.step()
