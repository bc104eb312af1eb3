"""pathos' pools, which are those of multiprocess."""

import multiprocess


class ProcessPool(multiprocess.ProcessPool):
    _library = "pathos.pools"


class _ProcessPool(ProcessPool):
    pass


class ThreadPool(multiprocess.ThreadPool):
    _library = "pathos.pools"
