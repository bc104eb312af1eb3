"""A program of its own: what `__main__` holds goes to workers with the functions that use it."""

import dataclasses
import sys

import torch
from joblib import Parallel, delayed, parallel_backend
from torch import nn

WEIGHT = torch.ones(3, requires_grad=True)
SCALED = WEIGHT * 2
FIXED = WEIGHT.detach()
MODEL = nn.Linear(3, 1)
TABLE = {"weights": [WEIGHT]}
UNUSED = torch.ones(2, requires_grad=True)


def by_global(k):
    return float(WEIGHT.detach().sum()) * k


def by_global_with_history(k):
    return float(SCALED.detach().sum()) * k


def by_fixed(k):
    return float(FIXED.sum()) * k


def helper(k):
    return by_global(k) + 1


def by_helper(k):
    return helper(k)


def by_table(k):
    return float(TABLE["weights"][0].detach().sum()) * k


def live_by_global(k):
    return (WEIGHT * k).sum()


def loss_by_model(k):
    return MODEL(torch.full((3,), float(k))).sum()


def value_by_model(k):
    return loss_by_model(k).item()


def argument(x, k):
    return x * k


def default(k, w=SCALED):
    return float(w.detach().sum()) * k


@dataclasses.dataclass
class Job:
    weight: torch.Tensor

    def run(self, k):
        return float(self.weight.detach().sum()) * k


class Holder:
    weight = WEIGHT

    @classmethod
    def run(cls, k):
        return float(cls.weight.detach().sum()) * k


def main():
    print(sys.argv[1:], __name__)
    print(Parallel(n_jobs=2)(delayed(by_global)(k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(by_global_with_history)(k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(by_fixed)(k) for k in (1, 2)))
    print(Parallel(n_jobs=2)(delayed(by_helper)(k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(by_table)(k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(default)(k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(Job(WEIGHT).run)(k) for k in (1, 2)))  # -> GG101
    print(Parallel(n_jobs=2)(delayed(Job(FIXED).run)(k) for k in (1, 2)))
    print(Parallel(n_jobs=2)(delayed(Holder.run)(k) for k in (1, 2)))  # -> GG101
    print(len(Parallel(n_jobs=2)(delayed(value_by_model)(k) for k in (1, 2))))
    print(Parallel(n_jobs=2)(delayed(lambda k: len(UNUSED) * k)(k) for k in (1, 2)))  # -> GG101

    out = Parallel(n_jobs=2)(delayed(live_by_global)(k) for k in (1, 2))  # -> GG101 GG102
    sum(out).backward()  # -> GG103:error
    print(WEIGHT.grad)

    out = Parallel(n_jobs=2)(delayed(loss_by_model)(k) for k in (1, 2))  # -> GG102
    sum(out).backward()  # -> GG103:error
    print(MODEL.weight.grad)

    with parallel_backend("threading"):
        out = Parallel(n_jobs=2)(delayed(live_by_global)(k) for k in (1, 2))
    sum(out).backward()
    print(WEIGHT.grad)


if __name__ == "__main__":
    main()
    out = Parallel(n_jobs=2)(delayed(argument)(WEIGHT.clone(), k) for k in (1, 2))  # -> GG101 GG102
    loss = (out[0] + out[1]).mean()
    loss.backward()  # -> GG103:error
    print(WEIGHT.grad.tolist())
    sys.exit(7)
