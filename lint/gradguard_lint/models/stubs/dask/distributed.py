"""dask's client, with which dask computes from when it is made, and local clusters."""

import concurrent.futures

from gradguard_lint.models.primitives import (
    certainly,
    drop_client,
    each,
    hand_out,
    place,
    results,
    set_client,
    task,
    unknown,
    wait_for,
)


class LocalCluster:
    _meant = False

    def __init__(self, *args, processes=None, **kwargs):
        self._threads = certainly(processes is False)


class Client:
    _library = "dask.distributed"
    _torch_pickles = False
    _forks = "call"
    _daemons = False

    def __init__(self, address=None, *args, processes=None, **kwargs):
        threads = certainly(processes is False)
        if certainly(isinstance(address, LocalCluster)):
            threads = address._threads
            self._meant = address._meant
        self._method = "dask-threads" if threads else "dask"
        self._place = place()
        set_client(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        wait_for(self)
        drop_client()

    def submit(self, func, *args, pure=None, workers=None, resources=None, retries=None,
               priority=None, key=None, allow_other_workers=None, actor=None, actors=None,
               fifo_timeout=None, **kwargs):  # fmt: skip
        return hand_out(self, task(func, *args, **kwargs), "future")

    def map(self, func, *iterables, pure=None, workers=None, resources=None, retries=None,
            priority=None, key=None, allow_other_workers=None, fifo_timeout=None,
            **kwargs):  # fmt: skip
        return hand_out(self, each(func, *iterables, **kwargs), "futures")

    def gather(self, futures, *args, **kwargs):
        return results(futures)

    def scatter(self, data, *args, **kwargs):
        return data  # it stands for what was sent, wherever a task gets it


def as_completed(futures, loop=None, with_results=False, **kwargs):
    if certainly(with_results is False):
        return concurrent.futures.as_completed(futures)
    if certainly(with_results is True):
        return [(it, results(it)) for it in futures]
    return unknown()


wait = concurrent.futures.wait
