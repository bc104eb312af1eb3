"""dask and joblib's dask backend, with torch."""

from __future__ import annotations

import dask
import torch
from cases import attempt, case, main
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_backend


def client(processes):
    return Client(processes=processes, n_workers=1, threads_per_worker=2, dashboard_address=None)


def scale(tensor, factor):
    return tensor * factor


def leaf(tensor):
    return [tensor.is_leaf, tensor.requires_grad]


def call():
    return Parallel(2, backend="dask")(delayed(abs)(k) for k in (-1, -2))


@case
def backend_by_argument():
    found = {"before": attempt(call)["raises"]}
    with client(processes=False):
        found["with a client"] = attempt(call)["raises"]
        with parallel_backend("dask"):
            found["by parallel_backend"] = Parallel(2)(delayed(abs)(k) for k in (-1, -2))
        found["registered"] = attempt(call)["raises"]
    return found


def backward_through(results, x):
    kept = results[0].grad_fn is not None
    (results[0] + results[1]).sum().backward()
    return [kept, None if x.grad is None else x.grad.tolist()]


@case
def thread_workers_copy():
    found = {}
    with client(processes=False) as here:
        x = torch.ones(2, requires_grad=True)
        with parallel_backend("dask"):
            found["joblib"] = backward_through(
                Parallel(2)(delayed(scale)(x, k) for k in (1.0, 2.0)), x
            )
        x = torch.ones(2, requires_grad=True)
        futures = [here.submit(scale, x, k) for k in (1.0, 2.0)]
        found["submit"] = backward_through(here.gather(futures), x)
    return found


@case
def threads_scheduler():
    x = torch.ones(2, requires_grad=True)
    tasks = [dask.delayed(scale)(dask.delayed(x, traverse=False), k) for k in (1.0, 2.0)]
    return backward_through(dask.compute(*tasks, scheduler="threads"), x)


@case
def process_workers():
    history = torch.ones(2, requires_grad=True) * 2
    with client(processes=True) as cluster:
        found = {"submit": cluster.submit(leaf, history).result()}
        with parallel_backend("dask"):
            found["joblib"] = Parallel(2)([delayed(leaf)(history)])[0]
        result = cluster.submit(scale, torch.ones(2, requires_grad=True), 2.0).result()
        found["result"] = leaf(result)
    return found


def lock():
    import threading

    return threading.Lock()


@case
def submit_of_a_lock():
    with client(processes=True) as cluster:
        return attempt(lambda: cluster.submit(repr, lock()).result())


if __name__ == "__main__":
    main()
