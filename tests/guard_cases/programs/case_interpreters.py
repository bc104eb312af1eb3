"""Interpreters of Python 3.14, each in a thread of this process: they share no objects with it.

Whatever needs torch or NumPy is refused on its way to them, and cannot be imported there. Backward
passes of the process fail from then on.
"""

import asyncio
import random
import threading
from concurrent import futures

import pytest
import torch

try:
    from concurrent import interpreters
except ImportError:
    interpreters = None
Interpreters = getattr(futures, "InterpreterPoolExecutor", object)

pytestmark = pytest.mark.skipif(interpreters is None, reason="Python has that since 3.14")

EXPECT = {
    "test_numbers_without_gradients": set(),
    "test_tensors_are_refused": set(),
    "test_a_seed_for_each_task": set(),
    "test_errors": set(),
    "test_from_an_event_loop": set(),
    "test_threads_of_interpreters": set(),
}


class OwnInterpreters(Interpreters):
    pass


def squares(values):
    return sum(value * value for value in values)


def seeded(number):
    import random

    random.seed(number)
    return random.random()


def test_numbers_without_gradients():
    w = torch.ones(3, requires_grad=True)
    for kind in (Interpreters, OwnInterpreters):
        with torch.no_grad(), kind(2) as pool:
            assert list(pool.map(squares, [w.tolist()] * 2)) == [3.0, 3.0]
            assert pool.submit(squares, (w * 2).tolist()).result() == 12.0
    with torch.autocast("cpu"), Interpreters(1, initializer=seeded, initargs=(1,)) as pool:
        assert list(pool.map(squares, [[1], [2]])) == [1, 4]


def test_tensors_are_refused():
    w = torch.ones(3, requires_grad=True)
    with Interpreters(1) as pool:
        for tensor in (w, w * 2, w.detach()):
            with pytest.raises(interpreters.NotShareableError):
                pool.submit(len, tensor).result()
            with pytest.raises(interpreters.NotShareableError):
                list(pool.map(len, [tensor, tensor]))


def test_a_seed_for_each_task():
    with Interpreters(2) as pool:
        assert list(pool.map(seeded, range(4))) == [random.Random(k).random() for k in range(4)]


def test_errors():
    with Interpreters(1) as pool, pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()


def test_from_an_event_loop():
    async def main(pool):
        return await asyncio.get_running_loop().run_in_executor(pool, squares, [1, 2])

    with Interpreters(1) as pool:
        assert asyncio.run(main(pool)) == 5


def test_threads_of_interpreters():
    own = [interpreters.create() for _ in range(2)]
    threads = [one.call_in_thread(seeded, k) for k, one in enumerate(own)]
    assert all(isinstance(one, threading.Thread) for one in threads)
    for one in threads:
        one.join()
    for one in own:
        assert one.call(squares, torch.ones(2).tolist()) == 2.0
        one.close()
