"""joblib's dask backend with what `distributed` cannot serialise: calls that do not end."""

from __future__ import annotations

import os
import threading
import time

import torch
from cases import case, main
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_backend

PATIENCE = 6.0
"""Seconds that a call has; one that works takes a fraction of one."""


MAKE = {
    "float32 tensor": lambda: torch.ones(2),
    "bfloat16 tensor": lambda: torch.ones(2, dtype=torch.bfloat16),
    "sparse tensor": lambda: torch.ones(2).to_sparse(),
    "conjugate tensor": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "lock": threading.Lock,
}


def make(kind):
    return MAKE[kind]()


def call(task, argument):
    with parallel_backend("dask"):
        Parallel(2)([delayed(task)(argument)])


def started(task, argument):
    thread = threading.Thread(target=call, args=(task, argument), daemon=True)
    thread.start()
    return thread


def ends(thread, patience):
    thread.join(patience)
    return not thread.is_alive()


@case
def calls_that_end():
    Client(processes=True, n_workers=1, threads_per_worker=4, dashboard_address=None)
    found = {"float32 tensor": ends(started(make, "float32 tensor"), 60)}
    others = {kind: started(make, kind) for kind in MAKE if kind not in found}
    time.sleep(PATIENCE)
    found |= {kind: ends(thread, 0) for kind, thread in others.items()}
    found["float32 tensor after those"] = ends(started(make, "float32 tensor"), 60)
    found["lock as argument"] = ends(started(repr, threading.Lock()), PATIENCE)
    return found


if __name__ == "__main__":
    main()
    os._exit(0)  # without the threads and the client that wait for ever
