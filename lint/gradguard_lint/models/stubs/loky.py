"""loky's executors."""

import concurrent.futures


class ProcessPoolExecutor(concurrent.futures.Executor):
    _start = "loky"
    _library = "loky"
    _torch_pickles = False
    _forks = "call"


def get_reusable_executor(*args, **kwargs):
    return ProcessPoolExecutor(*args, **kwargs)
