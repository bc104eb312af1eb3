"""joblib's multiprocessing backend where NumPy is not installed."""

from __future__ import annotations

import sys

sys.modules["numpy"] = None  # what an import of it meets then

import torch
from cases import attempt, case, main
from joblib import Parallel, delayed


def leaf(tensor):
    return tensor.is_leaf


def call(backend, tensor):
    return attempt(lambda: Parallel(2, backend=backend)([delayed(leaf)(tensor)])[0])


@case
def history_over_multiprocessing():
    return call("multiprocessing", torch.ones(2, requires_grad=True) * 2)


@case
def leaf_over_multiprocessing():
    return call("multiprocessing", torch.ones(2, requires_grad=True))


@case
def history_over_loky():
    return call("loky", torch.ones(2, requires_grad=True) * 2)


if __name__ == "__main__":
    main()
