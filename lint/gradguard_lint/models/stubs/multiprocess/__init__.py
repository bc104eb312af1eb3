"""multiprocess: multiprocessing with another pickler, which knows nothing of torch."""

import multiprocessing

from gradguard_lint.models.primitives import each, hand_out, start_method, task


class Process(multiprocessing.BaseProcess):
    _library = "multiprocess"
    _torch_pickles = False


class Pool(multiprocessing.BasePool):
    _library = "multiprocess"
    _torch_pickles = False


class ProcessPool(Pool):
    """A pool of pathos: its maps take several iterables."""

    def map(self, func, *iterables, **kwargs):
        return hand_out(self, each(func, *iterables))

    imap = uimap = map

    def amap(self, func, *iterables, **kwargs):
        return hand_out(self, each(func, *iterables), "future")

    def pipe(self, func, *args, **kwargs):
        return hand_out(self, task(func, *args, **kwargs))


class ProcessingPool(ProcessPool):
    pass


class ThreadPool(ProcessPool):
    _start = "thread"
    _forks = "call"


def get_context(method=None):
    method = start_method(method, "multiprocess")
    return multiprocessing.BaseContext(method, "multiprocess", False)
