"""Executors."""

from gradguard_lint.models.primitives import (
    begin_pool,
    each,
    hand_out,
    place,
    results,
    start_method,
    task,
    wait_for,
)


class Executor:
    _start = None
    _library = "concurrent.futures"
    _torch_pickles = True
    _forks = "work"
    _daemons = False

    def __init__(self, max_workers=None, mp_context=None, initializer=None, initargs=(), **kwargs):
        self._method = start_method(
            mp_context if self._start is None else self._start, self._library
        )
        self._single = max_workers == 1
        self._initializer = task(initializer, *initargs)
        self._place = place()
        begin_pool(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        wait_for(self)

    def submit(self, fn, /, *args, **kwargs):
        return hand_out(self, task(fn, *args, **kwargs), "future")

    def map(self, fn, *iterables, timeout=None, chunksize=1, buffersize=None, **kwargs):
        return hand_out(self, each(fn, *iterables, **kwargs))

    def shutdown(self, wait=True, **kwargs):
        if wait:
            wait_for(self)


class ProcessPoolExecutor(Executor):
    pass


class ThreadPoolExecutor(Executor):
    _start = "thread"
    _torch_pickles = False
    _forks = "call"

    def __init__(self, max_workers=None, thread_name_prefix="", initializer=None, initargs=()):
        super().__init__(max_workers, None, initializer, initargs)


def as_completed(fs, timeout=None):
    futures = list(fs)
    results(futures)
    return futures


def wait(fs, timeout=None, return_when="ALL_COMPLETED"):
    futures = list(fs)
    if timeout is None and return_when == "ALL_COMPLETED":
        results(futures)
    return futures, futures
