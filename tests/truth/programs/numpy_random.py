"""NumPy's global generator in forked processes, with and without the parent having come to it."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from cases import case, main

WORKERS = 3


def draw(_):
    return float(np.random.normal())


def drawn():
    """What three processes draw first, each forked anew."""
    found = []
    for _ in range(WORKERS):
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            found.append(pool.submit(draw, None).result())
    return found


def in_a_child(*first):
    """The same in a process that has done `first`, apart from this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_after, first).result()


def _after(first):
    for module in first:
        __import__(module)
    loaded = "numpy.random" in sys.modules
    return {"loaded": loaded, "streams": len(set(drawn()))}


@case
def untouched():
    return in_a_child()


@case
def after_torch():
    return in_a_child("torch")


@case
def loaded():
    return in_a_child("numpy.random")


if __name__ == "__main__":
    main()
