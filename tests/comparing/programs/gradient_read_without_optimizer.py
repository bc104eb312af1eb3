"""differs"""

import torch
from joblib import Parallel, delayed


def work(net, x):
    net(x).sum().backward()


def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    Parallel(n_jobs=2)(delayed(work)(net, x) for x in torch.rand(2, 4, 3))
    print({name: p.grad for name, p in net.named_parameters()})


main()
