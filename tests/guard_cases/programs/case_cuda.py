"""CUDA in worker processes, on a build of torch that has none: each attempt is seen."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from joblib import Parallel, delayed, parallel_config
from torch import nn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")

REFUSED = (AssertionError, RuntimeError)


def factory(k):
    return torch.ones(k, device="cuda")


def test_factory():
    with pytest.raises(REFUSED):
        Parallel(2)(delayed(factory)(k) for k in (1, 2))  # -> GG201:warning


def or_else(k):
    try:
        return float(torch.ones(k).cuda().sum())
    except REFUSED:
        return float(torch.ones(k).sum())


def test_caught():
    assert Parallel(2)(delayed(or_else)(k) for k in (1, 2)) == [1.0, 2.0]  # -> GG201:warning


def test_forked():
    with parallel_config("multiprocessing", n_jobs=2):
        assert Parallel()(delayed(or_else)(k) for k in (1, 2)) == [1.0, 2.0]  # -> GG201


def moved(model):
    try:
        model.to("cuda")
    except REFUSED:
        return False
    return True


def test_module():
    models = [nn.Linear(1, 1) for _ in range(2)]
    assert Parallel(2)(delayed(moved)(m) for m in models) == [False, False]  # -> GG201


class Trainer:
    def fit(self, k):
        return self._prepare(k)

    def _prepare(self, k):
        return or_else(k)


def test_through_calls():
    Parallel(2)(delayed(Trainer().fit)(k) for k in (1, 2))  # -> GG201


def wait(_):
    try:
        torch.cuda.synchronize()
    except REFUSED:
        pass


def test_query_that_needs_a_context():
    Parallel(2)(delayed(wait)(k) for k in (1, 2))  # -> GG201


def test_generator():
    parallel = Parallel(2, return_as="generator")
    list(parallel(delayed(or_else)(k) for k in (1, 2)))  # -> GG201


def test_every_call():
    for _ in range(2):
        with Parallel(2) as pool:
            pool(delayed(or_else)(k) for k in (1, 2))  # -> GG201
            pool(delayed(or_else)(k) for k in (1, 2))  # -> GG201


def choose(k):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(k)
    wait(k)


def test_visible_devices_changed():
    tasks = [delayed(choose)(k) for k in range(6)]
    Parallel(2, batch_size=1)(tasks)  # -> GG201 GG204:warning


def set_once(_):
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    wait(0)


def test_visible_devices_first():
    with parallel_config("multiprocessing", n_jobs=2):
        Parallel(batch_size=1)(delayed(set_once)(k) for k in range(4))  # -> GG201


def asked_first(k):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return float(torch.ones(k, device=device).sum())


def test_asked_first():
    assert Parallel(2)(delayed(asked_first)(k) for k in (1, 2)) == [1.0, 2.0]


def device(k):
    return str(torch.device("cuda", k))


def test_device_object():
    assert Parallel(2)(delayed(device)(k) for k in (0, 1)) == ["cuda:0", "cuda:1"]


def seeded(k):
    torch.manual_seed(k)
    torch.cuda.manual_seed_all(k)
    return torch.rand(1).item()


def test_seeds():
    Parallel(2)(delayed(seeded)(k) for k in (0, 1))


def memory(_):
    torch.cuda.empty_cache()
    return torch.cuda.device_count(), torch.cuda.memory_allocated()


def test_memory_queries():
    assert Parallel(2)(delayed(memory)(k) for k in (0, 1)) == [(0, 0), (0, 0)]


def test_threads():
    assert Parallel(2, backend="threading")(delayed(or_else)(k) for k in (1, 2)) == [1.0, 2.0]


def test_one_job():
    assert Parallel(1)(delayed(or_else)(k) for k in (1, 2)) == [1.0, 2.0]


def test_in_the_parent_only():
    wait(0)
    Parallel(2)(delayed(asked_first)(k) for k in (1, 2))


def hide(_):
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return before


def test_visible_devices_without_cuda():
    with parallel_config("multiprocessing", n_jobs=2):
        Parallel(batch_size=1)(delayed(hide)(k) for k in range(4))


def test_visible_devices_in_the_parent(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with parallel_config("multiprocessing", n_jobs=2):
        Parallel()(delayed(asked_first)(k) for k in (1, 2))


def test_fork_of_a_parent_without_cuda():
    with parallel_config("multiprocessing", n_jobs=2):
        Parallel()(delayed(asked_first)(k) for k in (1, 2))


def put(queue, function, k):
    queue.put(function(k))


def test_process():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=put, args=(queue, or_else, 2))
    process.start()
    assert queue.get() == 2.0
    process.join()


def test_process_on_cpu():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=put, args=(queue, asked_first, 2))
    process.start()
    assert queue.get() == 2.0
    process.join()


def test_initializer():
    with multiprocessing.get_context("fork").Pool(1, or_else, (2,)) as pool:
        assert pool.map(abs, [1, -1]) == [1, 1]  # -> GG201


@pytest.fixture
def cuda_is_up(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


def test_joblib_forks(cuda_is_up):
    Parallel(2, backend="multiprocessing")(delayed(abs)(k) for k in (1, -1))  # -> GG203:error


def test_pool_forks(cuda_is_up):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(abs, [1, -1])  # -> GG203


def test_executor_forks(cuda_is_up):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        executor.submit(abs, -1).result()  # -> GG203


def test_spawned_while_cuda_is_up(cuda_is_up):
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        pool.map(abs, [1, -1])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        executor.submit(abs, -1).result()
    Parallel(2)(delayed(abs)(k) for k in (1, -1))
