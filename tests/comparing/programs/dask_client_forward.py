"""differs GG103"""

import torch
from distributed import Client


def loss(net, x):
    return net(x).pow(2).mean()


def main(client):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = client.scatter(torch.rand(5, 3))
    losses = client.gather([client.submit(loss, net, x, pure=False) for _ in range(2)])
    (sum(losses) + 0.01 * net.weight.pow(2).sum()).backward()
    optimizer.step()


if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
        main(client)
