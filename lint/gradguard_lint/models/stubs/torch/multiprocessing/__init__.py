"""torch.multiprocessing: multiprocessing, and processes that are numbered by their rank."""

import multiprocessing

from gradguard_lint.models.primitives import rank, run_processes, start_method, task


class Process(multiprocessing.BaseProcess):
    _library = "torch.multiprocessing"


class Pool(multiprocessing.BasePool):
    _library = "torch.multiprocessing"


def get_context(method=None):
    method = start_method(method, "torch.multiprocessing")
    return multiprocessing.BaseContext(method, "torch.multiprocessing")


def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    ranked = task(fn, rank(), *args)
    run_processes(ranked, "torch.multiprocessing", start_method, nprocs != 1, daemon)


spawn = start_processes
