"""Calls of joblib's dask backend that would never end without the guard; run by test_dask.py."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import Any

import torch
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_backend

from pytest_gradguard import guard

MAKE: dict[str, Any] = {
    "float32 tensor": lambda: torch.ones(2),
    "bfloat16 tensor": lambda: torch.ones(2, dtype=torch.bfloat16),
    "sparse tensor": lambda: torch.ones(2).to_sparse(),
    "conjugate tensor": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "lock": threading.Lock,
}


def make(kind: str) -> Any:
    return {"made": [MAKE[kind]()]}


def use(*things: Any, **named: Any) -> str:
    return "used"


def end_of(*tasks: Any) -> str:
    try:
        with parallel_backend("dask"):
            Parallel(2)(tasks)
    except TypeError as error:
        return str(error)
    return "a result"


def main() -> None:
    found = {}
    with Client(processes=True, n_workers=1, threads_per_worker=2, dashboard_address=None):
        logging.disable(logging.CRITICAL)
        for kind in MAKE:
            found[f"result: {kind}"] = end_of(delayed(make)(kind))
        found["good results beside"] = end_of(*[delayed(make)("float32 tensor")] * 3)
        found["argument"] = end_of(delayed(use)(1, threading.Lock()))
        found["keyword"] = end_of(delayed(use)(1, lock={"a": [threading.Lock()]}))
        found["large argument"] = end_of(delayed(use)([threading.Lock()] * 5_000))
        found["afterwards"] = end_of(delayed(use)(1), delayed(use)(2))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    with guard("record"):
        main()
    os._exit(0)
