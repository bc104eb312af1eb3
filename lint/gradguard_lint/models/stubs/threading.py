"""Threads that are started one by one."""

import multiprocessing


class Thread(multiprocessing.BaseProcess):
    _start = "thread"
    _library = "threading"
    _torch_pickles = False
