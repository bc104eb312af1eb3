"""same"""

import random

import dask
import torch
from distributed import Client, as_completed, wait
from joblib import Parallel, delayed, parallel_config


def gradients(net, x):
    loss = net(x + random.random()).pow(2).mean()
    x.zero_()  # its own copy
    return loss.item(), torch.autograd.grad(loss, list(net.parameters()))


def average(found):
    several = zip(*(gradients for _, gradients in found), strict=True)
    return [sum(gradients) / len(gradients) for gradients in several]


def failing(found):
    raise ValueError(len(found))


def step(net, optimizer, found):
    for parameter, gradient in zip(net.parameters(), found, strict=True):
        parameter.grad = gradient
    optimizer.step()


def lazy(net, x):
    return dask.delayed(average)([dask.delayed(gradients)(net, x.clone()) for _ in range(2)])


def main(client):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.rand(5, 3)
    for _ in range(2):
        found = client.map(gradients, [net, net], [x, x + 1], pure=False)
        found += [client.submit(gradients, net, x, pure=False) for _ in range(2)]
        wait(found)
        step(net, optimizer, client.submit(average, found).result())
        print([loss for loss, _ in client.gather(found)])
    print(sorted(future.result()[0] for future in as_completed(found)))
    failed = client.submit(average, client.submit(failing, found))
    print(repr(failed.exception()), failed.status)
    step(net, optimizer, client.compute(lazy(net, x)).result())
    step(net, optimizer, lazy(net, x).persist().compute())
    print({name: one.result() for name, one in client.scatter({"one": 1}).items()})
    with parallel_config("dask"):
        step(net, optimizer, average(Parallel()(delayed(gradients)(net, row) for row in x)))


if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        main(client)
