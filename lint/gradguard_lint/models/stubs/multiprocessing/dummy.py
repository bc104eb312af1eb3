"""Threads with the names of processes."""

import multiprocessing


class Pool(multiprocessing.ThreadPool):
    _library = "multiprocessing.dummy"
