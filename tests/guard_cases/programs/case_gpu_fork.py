"""Forked workers of a process that has not initialised CUDA: the first file of its group."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, Dataset

EXPECT = {
    "test_availability_asked_before_a_process": {"GG203"},
}


@pytest.fixture(autouse=True)
def without_cuda():
    assert not torch.cuda.is_initialized()


def squares(k):
    return float(torch.arange(k, device="cuda").square().sum())


def squares_on_cpu(k):
    return float(torch.arange(k).square().sum())


def test_pool_before_cuda():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(squares, [3, 4]) == [5.0, 14.0]  # -> GG201


def test_backend_before_cuda():
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG201


def test_cpu_work_before_cuda():
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_on_cpu)(k) for k in (3, 4)) == [5.0, 14.0]


held = {}


def hold(k):
    held["x"] = torch.full((k,), 2.0, device="cuda")


def hold_on_cpu(k):
    held["x"] = torch.full((k,), 2.0)


def scaled(k):
    return float(held["x"].sum() * k)


def test_initializer():
    with multiprocessing.get_context("fork").Pool(2, hold, (3,)) as pool:
        assert pool.map(scaled, [1, 2]) == [6.0, 12.0]  # -> GG201


def test_initializer_on_cpu():
    with multiprocessing.get_context("fork").Pool(2, hold_on_cpu, (3,)) as pool:
        assert pool.map(scaled, [1, 2]) == [6.0, 12.0]


def choose(k):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(k)


def test_visible_devices_of_an_initializer():
    with multiprocessing.get_context("fork").Pool(1, choose, (1,)) as pool:
        assert pool.map(squares, [3, 4], chunksize=1) == [5.0, 14.0]  # -> GG201


def choose_and_hold(k):
    choose(k)
    hold(3)


def chosen_and_scaled(k):
    choose(k)
    return scaled(k)


def test_visible_devices_after_an_initializer():
    with multiprocessing.get_context("fork").Pool(1, choose_and_hold, (0,)) as pool:
        assert pool.map(chosen_and_scaled, [0, 1], chunksize=1) == [0.0, 6.0]  # -> GG201 GG204


def put_squares(queue, k):
    queue.put(squares(k))


def test_process():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = [context.Process(target=put_squares, args=(queue, 3)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [queue.get() for _ in processes] == [5.0, 5.0]
    for process in processes:
        process.join()


class Squares(multiprocessing.get_context("fork").Process):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def run(self):
        put_squares(self.queue, 4)


def test_subclass_of_process():
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = Squares(queue)
    process.start()
    assert queue.get() == 14.0
    process.join()
    assert "run" not in vars(process)


def put_availability(queue):
    queue.put((torch.cuda.is_available(), torch.cuda.device_count()))


def test_process_that_asks():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=put_availability, args=(queue,))
    process.start()
    assert queue.get() == (True, 2)
    process.join()


def test_devices_counted_before():
    assert torch.cuda.device_count()  # the driver's library for management is asked
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG201


REFUSED = "Cannot re-initialize CUDA in forked subprocess"


def test_availability_asked_before():
    assert torch.cuda.is_available()  # which asks the driver: a child cannot any more
    parallel = Parallel(2, backend="multiprocessing")
    with pytest.raises(RuntimeError, match=REFUSED):
        parallel(delayed(squares)(k) for k in (3, 4))  # -> GG203:error


def test_availability_asked_before_an_executor():
    assert torch.cuda.is_available()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        future = executor.submit(squares, 3)  # -> GG203
        with pytest.raises(RuntimeError, match=REFUSED):
            future.result()


def hold_if_possible(k):
    try:
        hold(k)
    except RuntimeError:
        held["x"] = torch.full((k,), 2.0)


def scaled_on_cpu(k):
    return float((held["x"] * k).sum())


def test_availability_asked_before_an_initializer():
    assert torch.cuda.is_available()
    with multiprocessing.get_context("fork").Pool(1, hold_if_possible, (3,)) as pool:
        assert pool.map(scaled_on_cpu, [1, 2]) == [6.0, 12.0]  # -> GG203


def squares_anywhere(k):
    try:
        return squares(k)
    except RuntimeError:
        return squares_on_cpu(k)


def test_availability_asked_before_a_task_that_goes_on():
    assert torch.cuda.is_available()
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_anywhere)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG203


def put_squares_of(function, queue, k):
    queue.put(function(k))


def squares_in_a_process(function):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=put_squares_of, args=(function, queue, 3))
    process.start()  # -> GG203
    assert queue.get() == 5.0
    process.join()


def test_availability_asked_before_a_process():
    assert torch.cuda.is_available()
    squares_in_a_process(squares_anywhere)


def test_availability_asked_before_a_process_on_the_cpu():
    assert torch.cuda.is_available()
    squares_in_a_process(squares_on_cpu)


class Squares3(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return squares(3)


def test_availability_asked_before_a_loader():
    assert torch.cuda.is_available()
    loader = DataLoader(Squares3(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match=REFUSED):
        list(loader)  # -> GG203


def test_availability_asked_before_spawning():
    assert torch.cuda.is_available()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(squares, [3]) == [5.0]  # -> GG201


def test_availability_asked_before_cpu_work():
    assert torch.cuda.is_available()
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_on_cpu)(k) for k in (3, 4)) == [5.0, 14.0]


def slope(k):
    x = torch.tensor(float(k), requires_grad=True)
    (x * x).backward()
    return float(x.grad)


def test_gradients_taken_before():
    assert slope(1) == 2.0  # autograd starts a thread for each GPU, and the driver with them
    parallel = Parallel(2, backend="multiprocessing")
    with pytest.raises(RuntimeError, match="CUDA"):
        parallel(delayed(squares)(k) for k in (3, 4))  # -> GG203:error


def test_gradients_taken_before_gradients():
    assert slope(1) == 2.0
    parallel = Parallel(2, backend="multiprocessing")
    with pytest.raises(RuntimeError, match="Unable to handle autograd's threading"):
        parallel(delayed(slope)(k) for k in (3, 4))  # -> GG303:error


def test_gradients_taken_before_cpu_work():
    assert slope(1) == 2.0
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(squares_on_cpu)(k) for k in (3, 4)) == [5.0, 14.0]


def test_gradients_taken_before_spawning():
    assert slope(1) == 2.0
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(slope, [3]) == [6.0]


def test_pool_older_than_cuda():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(squares_on_cpu, [3]) == [5.0]
        assert float(torch.ones(2, device="cuda").sum()) == 2.0
        assert pool.map(squares_on_cpu, [3]) == [5.0]
