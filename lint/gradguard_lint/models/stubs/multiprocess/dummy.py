"""Threads with the names of processes."""

import multiprocess


class Pool(multiprocess.ThreadPool):
    _library = "multiprocess.dummy"
