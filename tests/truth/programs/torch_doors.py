"""Process pools of the standard library: their pickler refuses tensors with history."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


import torch
import torch.multiprocessing
from cases import attempt, case, main
from joblib.externals import loky


def leaf(tensor):
    return tensor.is_leaf


def with_history(_):
    return torch.ones(2, requires_grad=True) * 2


def submit(executor, task, *args):
    return executor.submit(task, *args).result(timeout=60)


def pool_of(module):
    return module.get_context("fork").Pool(1)


@case
def executor_argument():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        return attempt(submit, executor, leaf, torch.ones(2, requires_grad=True) * 2)


@case
def executor_result():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        return attempt(submit, executor, with_history, 0)


@case
def pool_argument():
    with pool_of(multiprocessing) as pool:
        tensor = torch.ones(2, requires_grad=True) * 2
        return attempt(pool.apply, leaf, (tensor,))


@case
def pool_result():
    with pool_of(multiprocessing) as pool:
        return attempt(lambda: pool.apply(with_history, (0,)).is_leaf)


@case
def torch_pool_argument():
    with pool_of(torch.multiprocessing) as pool:
        tensor = torch.ones(2, requires_grad=True) * 2
        return attempt(pool.apply, leaf, (tensor,))


@case
def pool_leaf_argument():
    with pool_of(multiprocessing) as pool:
        return attempt(pool.apply, leaf, (torch.ones(2, requires_grad=True),))


@case
def loky_executor_argument():
    executor = loky.get_reusable_executor(1)
    return attempt(submit, executor, leaf, torch.ones(2, requires_grad=True) * 2)


if __name__ == "__main__":
    main()
