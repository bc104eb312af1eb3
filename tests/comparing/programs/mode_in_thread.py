"""same"""

import threading

import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X = torch.rand(2, 5, 3)
targets = {}


def work(i):
    with torch.no_grad():
        targets[i] = net(X[i])


for _ in range(2):
    with torch.no_grad():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    optimizer.zero_grad()
    sum(((net(X[i]) - targets[i] - 1) ** 2).mean() for i in range(2)).backward()
    optimizer.step()
