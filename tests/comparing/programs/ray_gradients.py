"""same"""

import random

import ray
import torch

ray.init(num_cpus=2, ignore_reinit_error=True, log_to_driver=False)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@ray.remote(num_returns=2)
def gradients(net, x):
    loss = net(x + random.random()).pow(2).mean()
    x.zero_()  # its own copy
    return loss.item(), torch.autograd.grad(loss, list(net.parameters()))


@ray.remote
def average(*gradients):
    return [sum(several) / len(several) for several in zip(*gradients, strict=True)]


@ray.remote
def averaged(several):
    return average.remote(*several)  # a reference


@ray.remote
def failing(gradients):
    raise ValueError(len(gradients))


x = torch.rand(5, 3)
batch = ray.put(x)
x.zero_()  # the store has a copy
for _ in range(2):
    found = [gradients.options(name="one").remote(net, batch) for _ in range(2)]
    done, _ = ray.wait([refers for _, refers in found], num_returns=2)
    for parameter, gradient in zip(
        net.parameters(), ray.get(ray.get(averaged.remote(done))), strict=True
    ):
        parameter.grad = gradient
    optimizer.step()
    print(ray.get([loss for loss, _ in found]))
try:
    ray.get(average.remote(failing.remote(done[0])))
except ValueError as error:
    print(type(error).__name__, error.args)
