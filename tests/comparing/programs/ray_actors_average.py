"""same"""

import ray
import torch

ray.init(num_cpus=2, ignore_reinit_error=True, log_to_driver=False)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)


@ray.remote
class Trainer:
    def __init__(self, net):
        self.net = net
        self.head = torch.nn.Linear(1, 1)
        self.losses = []
        self.optimizer = torch.optim.Adam([*net.parameters(), *self.head.parameters()], lr=0.1)

    def train(self, x):
        self.optimizer.zero_grad()
        loss = self.head(self.net(x + torch.rand(1))).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def read(self):
        return self.net.state_dict(), self.head, self.losses

    def write(self, state):
        self.net.load_state_dict(state)


trainers = [Trainer.remote(net), Trainer.options(name="second").remote(net)]
batches = torch.rand(4, 5, 3)
for _ in range(2):
    for index, batch in enumerate(batches):
        trainers[index % 2].train.remote(batch)
    states, heads, losses = zip(*ray.get([one.read.remote() for one in trainers]), strict=True)
    means = {name: sum(state[name] for state in states) / 2 for name in states[0]}
    ray.get([one.write.remote(ray.put(means)) for one in trainers])
    net.load_state_dict(means)
    print(losses, heads[0].weight, heads[1].weight)
for trainer in trainers:
    ray.kill(trainer)
