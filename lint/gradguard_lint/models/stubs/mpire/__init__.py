"""mpire: pools whose functions get the items of tuples one by one."""

import multiprocessing

from gradguard_lint.models.primitives import hand_out, task, unpacked


class WorkerPool(multiprocessing.BasePool):
    _library = "mpire"
    _torch_pickles = False
    _forks = "call"

    def __init__(self, n_jobs=None, *args, start_method=None, **kwargs):
        super().__init__(n_jobs)
        if start_method is not None:
            self._method = start_method

    def map(self, func, iterable_of_args, *args, **kwargs):
        return hand_out(self, unpacked(func, iterable_of_args, others=True))

    map_unordered = imap = imap_unordered = map

    def apply(self, func, args=(), kwargs={}, *more, **options):
        return hand_out(self, task(func, *args, **kwargs))

    def apply_async(self, func, args=(), kwargs={}, callback=None, *more, **options):
        return hand_out(self, task(func, *args, **kwargs), "future", callback)
