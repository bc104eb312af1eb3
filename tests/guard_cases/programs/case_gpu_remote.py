"""Simulated GPUs in dask's workers, in spawned pools and in processes of the program's own."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from joblib import Parallel, delayed, parallel_config

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.Client(processes=True, set_as_default=False, **options) as client:
        yield client


@pytest.fixture
def dask(client):
    with client.as_current():
        yield client


def on_dask(function, *values):
    with parallel_config("dask"):
        return Parallel(2)(delayed(function)(value) for value in values)


def squares(k):
    return float(torch.arange(k, device="cuda").square().sum())


def squares_on_cpu(k):
    return float(torch.arange(k).square().sum())


def total(x):
    return float(x.detach().sum())


def test_dask_joblib_work(dask):
    with parallel_config("dask"):
        assert Parallel(2)(delayed(squares)(k) for k in (3, 4)) == [5.0, 14.0]  # -> GG201


def test_dask_work_in_the_same_worker(dask):
    assert dask.submit(squares, 3, pure=False).result() == 5.0  # -> GG201


def test_dask_joblib_argument(dask):
    x = torch.ones(3, device="cuda")
    with parallel_config("dask"):
        assert Parallel(2)(delayed(total)(x * k) for k in (1, 2)) == [3.0, 6.0]  # -> GG202


def test_dask_joblib_gradient(dask):
    w = torch.ones(3, device="cuda", requires_grad=True)
    with parallel_config("dask"):
        assert Parallel(2)(delayed(total)(w) for _ in (1, 2)) == [3.0, 3.0]  # -> GG101 GG202


def made(k):
    return torch.ones(k, device="cuda")


def test_dask_result(dask):
    future = dask.submit(made, 3, pure=False)  # -> GG201
    with pytest.raises(TypeError, match="Could not serialize"):  # dask asks for `numpy()`
        future.result()


def test_dask_cpu(dask):
    x = torch.ones(3, device="cuda")
    assert on_dask(squares_on_cpu, 3, 4) == [5.0, 14.0]
    assert dask.gather(dask.map(total, [x.cpu(), 2 * x.cpu()])) == [3.0, 6.0]


def available(_):
    return torch.cuda.is_available(), torch.cuda.device_count()


def test_dask_availability(dask):
    assert on_dask(available, 0, 1) == [(True, 2)] * 2


def test_dask_threads():
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    x = torch.ones(3, device="cuda")
    with distributed.Client(processes=False, **options) as client:
        assert client.submit(total, x).result() == 3.0
        assert client.submit(squares, 3).result() == 5.0
        assert on_dask(total, x, 2 * x) == [3.0, 6.0]


held = {}


def hold(k):
    held["x"] = made(k)


def scaled(k):
    return float(held["x"].sum() * k)


def test_spawned_initializer():
    with multiprocessing.get_context("spawn").Pool(1, hold, (3,)) as pool:
        assert pool.map(scaled, [1, 2]) == [3.0, 6.0]  # -> GG201


def test_spawned_result():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(made, 2).result().tolist() == [1.0, 1.0]  # -> GG201 GG202


def put_squares(queue, k):
    try:
        queue.put(squares(k))
    except RuntimeError as error:
        queue.put(str(error))


def put_squares_on_cpu(queue, k):
    queue.put(squares_on_cpu(k))


def put_total(queue, x):
    queue.put(total(x))


def test_spawned_process():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=put_squares, args=(queue, 3))
    process.start()
    assert queue.get() == 5.0
    process.join()


def test_spawned_process_with_a_tensor():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=put_total, args=(queue, torch.ones(2, device="cuda")))
    process.start()  # -> GG202
    assert queue.get() == 2.0
    process.join()


def test_forked_processes_after_cuda():
    torch.zeros(1, device="cuda")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = [context.Process(target=put_squares, args=(queue, 3)) for _ in range(2)]
    for process in processes:
        process.start()  # -> GG203
        assert "Cannot re-initialize CUDA in forked subprocess" in queue.get()
        process.join()


def test_forked_process_for_cpu_work_after_cuda():
    torch.zeros(1, device="cuda")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=put_squares_on_cpu, args=(queue, 3))
    process.start()
    assert queue.get() == 5.0
    process.join()
