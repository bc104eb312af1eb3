"""differs GG103"""

import ray
import torch

ray.init(num_cpus=2, ignore_reinit_error=True, log_to_driver=False)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@ray.remote
def loss(net, x):
    return net(x).pow(2).mean()


x = ray.put(torch.rand(5, 3))
losses = ray.get([loss.remote(net, x), loss.remote(net, x)])
(sum(losses) + 0.01 * net.weight.pow(2).sum()).backward()
optimizer.step()
