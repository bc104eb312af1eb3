"""same"""

import torch
from joblib import Parallel, delayed


def work(net, x):
    x = x.clone().requires_grad_()
    net(x).sum().backward()
    return x.grad


def main():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    print(sum(Parallel(n_jobs=2)(delayed(work)(net, x) for x in torch.rand(2, 4, 3))))


main()
