"""What fails at the boundary: writes to memory maps, loaders in workers, what cannot be sent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
import torch.multiprocessing
from cases import attempt, case, main
from joblib import Parallel, delayed
from joblib.externals.loky.backend.context import get_context
from torch.utils.data import DataLoader

FORK = multiprocessing.get_context("fork")
SHAPE = (600, 600)
"""1.4 MB of float32: above joblib's threshold."""


# -- memory maps -----------------------------------------------------------------------------------


def trained(array):
    weight = torch.nn.Parameter(torch.from_numpy(array))
    weight.sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()


WRITES = {
    "from_numpy": lambda array: torch.from_numpy(array).mul_(2),
    "as_tensor": lambda array: torch.as_tensor(array).add_(1),
    "asarray": lambda array: torch.asarray(array).zero_(),
    "from_dlpack": lambda array: torch.from_dlpack(array).mul_(2),
    "frombuffer": lambda array: torch.frombuffer(array, dtype=torch.float32).mul_(2),
    "collated": lambda array: torch.as_tensor(np.asarray(array)[2:]).mul_(2),
    "item": lambda array: torch.from_numpy(array).__setitem__(0, 5),
    "out": lambda array: torch.ones(SHAPE, out=torch.from_numpy(array)),
    "optimizer": trained,
    "back in NumPy": lambda array: torch.from_numpy(array).numpy().fill(3),
    "numpy": lambda array: array.fill(3),
    "read": lambda array: torch.from_numpy(array).sum(),
    "copied": lambda array: torch.tensor(array).mul_(2),
    "cloned": lambda array: torch.from_numpy(array).clone().mul_(2),
}


def signal_of(write, array):
    """The signal that ends a process which does that to a read-only map; 0: none."""
    child = os.fork()
    if not child:
        try:
            write(array)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@case
def writes_to_a_read_only_map():
    np.save("array.npy", np.ones(SHAPE, dtype=np.float32))
    array = np.load("array.npy", mmap_mode="r")
    return {name: signal_of(write, array) for name, write in WRITES.items()}


def doubled(array):
    return float(torch.from_numpy(array).mul_(2)[0, 0])


def doubled_by_workers(count=3, **options):
    array = np.ones(SHAPE, dtype=np.float32)
    return sorted(Parallel(2, **options)(delayed(doubled)(array) for _ in range(count)))


@case
def doubled_in_shared_maps():
    return doubled_by_workers(mmap_mode="r+")


@case
def doubled_in_copies():
    return [doubled_by_workers(mmap_mode="c"), doubled_by_workers(max_nbytes=None)]


@case
def killed_in_loky():
    return attempt(doubled_by_workers, 1)["raises"]


@case
def killed_in_a_pool():
    print("killing", flush=True)
    return doubled_by_workers(1, backend="multiprocessing")


# -- loaders in workers ----------------------------------------------------------------------------


def loaded(**options):
    return [batch.tolist() for batch in DataLoader([0, 1], batch_size=2, **options)]


def in_context_of_loky():
    return loaded(num_workers=1, multiprocessing_context=get_context("loky"))


@case
def loaders_in_loky():
    options = {name: {"multiprocessing_context": name} for name in ("fork", "spawn", "loky")}
    found = {
        name: attempt(Parallel(2), [delayed(loaded)(num_workers=1, **option)])
        for name, option in {"default": {}, **options}.items()
    }
    found["no workers"] = Parallel(2)([delayed(loaded)(num_workers=0)])
    found["context of loky"] = Parallel(2)([delayed(in_context_of_loky)()])
    return found


@case
def loaders_in_other_workers():
    one = {"num_workers": 1}
    tasks = [delayed(loaded)(num_workers=1)]
    with FORK.Pool(1) as pool, ProcessPoolExecutor(1, mp_context=FORK) as executor:
        return {
            "pool": attempt(pool.apply, loaded, kwds=one),
            "executor": executor.submit(loaded, **one).result(),
            "joblib's multiprocessing": attempt(Parallel(2, backend="multiprocessing"), tasks),
            "threads": Parallel(2, backend="threading")(tasks),
        }


# -- what cannot be sent ---------------------------------------------------------------------------


class Logged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log = {"lock": threading.Lock()}


def sender(queue):
    queue.put(torch.ones(2))


def received(strategy):
    torch.multiprocessing.set_sharing_strategy(strategy)
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=sender, args=(queue,))
    process.start()
    process.join()
    return attempt(lambda: queue.get().tolist())


@case
def tensors_whose_sender_has_ended():
    return [received("file_descriptor"), received("file_system")]


@case
def graphs_that_are_refused():
    graph = torch.ones(2, requires_grad=True) * 2
    with FORK.Pool(1) as pool, ProcessPoolExecutor(1, mp_context=FORK) as executor:
        return [
            attempt(pool.apply, id, (graph,)),
            attempt(executor.submit(id, graph).result),
            attempt(FORK.SimpleQueue().put, graph),
        ]


@case
def a_lock_in_a_module():
    with FORK.Pool(1) as pool:
        return [
            attempt(pool.apply, id, (Logged(),)),
            attempt(Parallel(2), [delayed(id)(Logged())]),
            attempt(pickle.dumps, Logged()),
        ]


if __name__ == "__main__":
    main()
