"""differs"""

import torch
from distributed import Client


def train(net, x):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(x).pow(2).mean().backward()
    optimizer.step()
    return net(x).sum().item()


with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    print(client.submit(train, net, torch.rand(5, 3)).result(), net.weight)
