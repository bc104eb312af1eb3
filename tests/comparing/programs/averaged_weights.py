"""same"""

import torch
from joblib import Parallel, delayed

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


def work(net, x, y):
    own = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for i in torch.randperm(5):
        own.zero_grad()
        ((net(x[i]) - y[i]) ** 2).mean().backward()
        own.step()
    return net.state_dict()


for _ in range(2):
    states = Parallel(n_jobs=2)(delayed(work)(net, x, y) for x, y in zip(X, Y, strict=False))
    net.load_state_dict({name: (states[0][name] + states[1][name]) / 2 for name in states[0]})
