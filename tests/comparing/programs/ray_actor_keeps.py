"""differs"""

import ray
import torch

ray.init(num_cpus=2, ignore_reinit_error=True, log_to_driver=False)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)


@ray.remote
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(self, x):
        self.optimizer.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


trainer = Trainer.remote(net)
print(ray.get([trainer.train.remote(torch.rand(5, 3)) for _ in range(2)]))
print(net.weight)
