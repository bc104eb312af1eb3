"""joblib's dask backend with what `distributed` cannot serialise: calls that do not end."""

from __future__ import annotations

import os
import threading

import torch
from cases import case, main
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_config

PATIENCE = 6.0
"""Seconds that a call has; one that works takes a fraction of one."""


def make(kind):
    if kind == "lock":
        return threading.Lock()
    return torch.ones(2, dtype=getattr(torch, kind))


def call(task, argument):
    with parallel_config(backend="dask"):
        Parallel(2)([delayed(task)(argument)])


def ends(task, argument, patience=PATIENCE):
    thread = threading.Thread(target=call, args=(task, argument), daemon=True)
    thread.start()
    thread.join(patience)
    return not thread.is_alive()


@case
def calls_that_end():
    Client(processes=True, n_workers=1, threads_per_worker=4, dashboard_address=None)
    # The lock comes last: one argument that fails breaks the client for all later calls.
    return {
        "float32 tensor as result": ends(make, "float32", patience=60),
        "bfloat16 tensor as result": ends(make, "bfloat16"),
        "float32 tensor after that": ends(make, "float32", patience=60),
        "lock as result": ends(make, "lock"),
        "lock as argument": ends(repr, threading.Lock()),
    }


if __name__ == "__main__":
    main()
    os._exit(0)  # without the threads and the client that wait for ever
