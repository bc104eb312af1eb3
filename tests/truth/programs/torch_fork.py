"""torch in forked workers after work in the parent: the case that is named runs, and may hang."""

from __future__ import annotations

import os

import numpy as np
import torch
from cases import case, main
from joblib import Parallel, delayed


def compute(size):
    matrix = torch.ones(size, size)
    return (matrix @ matrix).trace().item()


def compute_on_one_thread(size):
    torch.set_num_threads(1)
    return compute(size)


def compute_numpy(size):
    matrix = np.ones((size, size))
    return float((matrix @ matrix).trace())


def fork(task, size):
    print("forking", flush=True)
    return Parallel(2, backend="multiprocessing")(delayed(task)(size) for _ in range(2))


@case
def large_in_parent_and_workers():
    compute(2000)
    return fork(compute, 2000)


@case
def small_in_parent():
    torch.ones(20).square().sum()
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    return fork(compute, 2000)


@case
def one_thread_in_workers():
    compute(2000)
    return fork(compute_on_one_thread, 2000)


@case
def numpy_in_workers():
    compute(2000)
    return fork(compute_numpy, 500)


@case
def one_thread_from_a_fork_hook():
    compute(2000)
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    return fork(compute, 2000)


@case
def loky_workers():
    compute(2000)
    return Parallel(2)(delayed(compute)(2000) for _ in range(2))


def backward(size):
    x = torch.ones(size, requires_grad=True)
    x.square().sum().backward()
    return x.grad.tolist()


@case
def small_autograd_in_parent_and_workers():
    backward(2)
    return fork(backward, 2)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
