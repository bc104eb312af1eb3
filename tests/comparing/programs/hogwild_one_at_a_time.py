"""same"""

import torch
import torch.multiprocessing as mp

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


net.share_memory()


def work(net, x, y):
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in torch.randperm(5):
        own.zero_grad()
        ((net(x[i]) - y[i]) ** 2).mean().backward()
        own.step()


for x, y in zip(X, Y, strict=False):
    process = mp.Process(target=work, args=(net, x, y))
    process.start()
    process.join()
print(net.weight)
