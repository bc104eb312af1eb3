"""Maps over processes or threads with a bar that shows how far they are."""

import multiprocessing

from gradguard_lint.models.primitives import each, hand_out, run_here


class _Processes(multiprocessing.BasePool):
    _library = "tqdm.contrib.concurrent"
    _torch_pickles = False
    _forks = "call"
    _daemons = False


class _Threads(_Processes):
    _start = "thread"


def process_map(fn, *iterables, max_workers=None, **kwargs):
    if max_workers == 1:
        return run_here(each(fn, *iterables))
    return hand_out(_Processes(), each(fn, *iterables))


def thread_map(fn, *iterables, max_workers=None, **kwargs):
    if max_workers == 1:
        return run_here(each(fn, *iterables))
    return hand_out(_Threads(), each(fn, *iterables))
