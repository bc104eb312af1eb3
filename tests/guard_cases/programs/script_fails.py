"""A program that ends in an error; what was found before it is reported all the same."""

import torch
from joblib import Parallel, delayed


def work(x, k):
    return float(x.detach().sum()) / k


if __name__ == "__main__":
    x = torch.ones(3, requires_grad=True)
    print(Parallel(n_jobs=2)(delayed(work)(x, k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(work)(x.detach(), 0) for _ in (1, 2)))
