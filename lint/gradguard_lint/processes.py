"""Several processes for one run, which end with it in any case.

Each worker has a pipe of its own. The executors of the standard library share queues, and on Python
3.10 wait forever if a worker is killed during a write.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pytest_gradguard.platforms import HERE

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> list[Result]:
    """``[function(item) for item in items]`` in `jobs` processes; in this one if they die."""
    import multiprocessing
    from multiprocessing.connection import wait

    context: Any = multiprocessing.get_context(HERE.linter_start)
    waiting = iter(range(len(items)))
    results: dict[int, Result] = {}
    workers: list[Any] = []
    pipes: list[Any] = []
    try:
        with HERE.interrupts_held_back():
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                worker = context.Process(
                    target=_work, args=(ours, theirs, function, items), daemon=True
                )
                worker.start()
                theirs.close()
                workers.append(worker)
                pipes.append(ours)
        busy = [pipe for pipe in pipes if _give(pipe, next(waiting, None))]
        while busy:
            ready: list[Any] = wait(busy)
            for pipe in ready:
                try:
                    number, result = pipe.recv()
                except (EOFError, OSError):  # the worker died
                    busy.remove(pipe)
                    continue
                results[number] = result
                if not _give(pipe, next(waiting, None)):
                    busy.remove(pipe)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return [
        results[number] if number in results else function(item)
        for number, item in enumerate(items)
    ]


def _give(pipe: Any, number: int | None) -> bool:
    """Send a worker its next item; False if there is none, or no worker."""
    if number is None:
        return False
    try:
        pipe.send(number)
    except OSError:
        return False
    return True


def _work(theirs: Any, ours: Any, function: Callable[[Item], Any], items: Sequence[Item]) -> None:
    """The loop of a worker: Ctrl-C is handled by the parent, without which the worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # if it couldn't be held back from the start
    theirs.close()
    try:
        while True:
            number = ours.recv()
            ours.send((number, function(items[number])))
    except (EOFError, OSError):
        return
