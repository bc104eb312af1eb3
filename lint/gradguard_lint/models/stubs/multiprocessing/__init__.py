"""Processes that are started one by one, pools, and contexts that say how both start.

`_start` is how workers start (None: as the program's processes do), `_forks` when a pool's come
into being, `_torch_pickles` whether torch itself pickles the tensors that workers are given.
"""

import multiprocessing

from gradguard_lint.models.primitives import (
    ask_for_end,
    begin_pool,
    each,
    hand_out,
    in_loop,
    place,
    start_method,
    start_process,
    task,
    unpacked,
    wait_for,
)


class BaseProcess:
    _start = None
    _library = "multiprocessing"
    _torch_pickles = True

    def __init__(self, group=None, target=None, name=None, args=(), kwargs={}, *, daemon=None):
        self._task = task(target, *args, **kwargs)
        self._several = in_loop()
        self.daemon = daemon

    def start(self):
        start_process(self)

    def join(self, timeout=None):
        wait_for(self, timeout)

    def is_alive(self):
        return not ask_for_end(self)


class Process(BaseProcess):
    pass


class BasePool:
    _start = None
    _library = "multiprocessing"
    _torch_pickles = True
    _forks = "made"
    _daemons = True

    def __init__(self, processes=None, initializer=None, initargs=(), *args, **kwargs):
        self._method = start_method(self._start, self._library)
        self._single = processes == 1
        self._initializer = task(initializer, *initargs)
        self._place = place()
        begin_pool(self)

    def __enter__(self):
        return self

    def map(self, func, iterable, chunksize=None):
        return hand_out(self, each(func, iterable))

    imap = imap_unordered = map

    def map_async(self, func, iterable, chunksize=None, callback=None, error_callback=None):
        return hand_out(self, each(func, iterable), "future", callback)

    def starmap(self, func, iterable, chunksize=None):
        return hand_out(self, unpacked(func, iterable))

    istarmap = starmap

    def starmap_async(self, func, iterable, chunksize=None, callback=None, error_callback=None):
        return hand_out(self, unpacked(func, iterable), "future", callback)

    def apply(self, func, args=(), kwds={}):
        return hand_out(self, task(func, *args, **kwds))

    def apply_async(self, func, args=(), kwds={}, callback=None, error_callback=None):
        return hand_out(self, task(func, *args, **kwds), "future", callback)

    def submit(self, func, /, *args, **kwargs):  # of executors: what is like a pool may have it
        return hand_out(self, task(func, *args, **kwargs), "future")

    def join(self):
        wait_for(self)


class Pool(BasePool):
    pass


class ThreadPool(BasePool):
    _start = "thread"
    _torch_pickles = False
    _forks = "call"


class BaseContext:
    def __init__(self, method, library="multiprocessing", torch_pickles=True):
        self._method = method

        class Process(BaseProcess):
            _start = method
            _library = library
            _torch_pickles = torch_pickles

        class Pool(BasePool):
            _start = method
            _library = library
            _torch_pickles = torch_pickles

        self.Process = Process
        self.Pool = Pool

    def Lock(self):
        return multiprocessing.Lock()

    RLock = Semaphore = BoundedSemaphore = Condition = Lock


def get_context(method=None):
    return BaseContext(start_method(method, "multiprocessing"))
