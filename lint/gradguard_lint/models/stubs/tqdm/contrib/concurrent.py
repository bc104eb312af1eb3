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


def _mapped(pool, tasks, max_workers):
    return run_here(tasks) if max_workers == 1 else hand_out(pool, tasks)


def process_map(fn, *iterables, max_workers=None, **kwargs):
    return _mapped(_Processes(), each(fn, *iterables), max_workers)


def thread_map(fn, *iterables, max_workers=None, **kwargs):
    return _mapped(_Threads(), each(fn, *iterables), max_workers)
