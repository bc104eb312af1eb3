"""Threads that seed the global generators which they share."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed

DETAILS = {
    "test_torch": {"GG308": {"framework": "torch", "object": "sample", "backend": "threading"}},
    "test_all_of_them": {"GG308": {"generators": ["numpy", "random", "torch"]}},
}

THREADS = {"n_jobs": 2, "backend": "threading"}


def meeting(parties=2):
    return threading.Barrier(parties, timeout=120)


@pytest.fixture(autouse=True)
def seeded_again():
    yield
    torch.seed()
    np.random.seed()
    random.seed()


def sample(seed, both):
    torch.manual_seed(seed)
    both.wait()
    return torch.rand(1).item()


def test_torch():
    both = meeting()
    Parallel(**THREADS)(delayed(sample)(seed, both) for seed in range(2))  # -> GG308:warning


def sample_numpy(seed, both):
    np.random.seed(seed)
    both.wait()
    return np.random.rand()


def test_numpy():
    both = meeting()
    with ThreadPoolExecutor(2) as executor:
        list(executor.map(lambda seed: sample_numpy(seed, both), range(2)))  # -> GG308


def sample_python(seed, both):
    random.seed(seed)
    both.wait()
    return random.random()


def test_python():
    both = meeting()
    with ThreadPool(2) as pool:
        pool.starmap(sample_python, [(seed, both) for seed in range(2)], chunksize=1)  # -> GG308


def seed_everything(seed):
    for seeds in (random.seed, np.random.seed, torch.manual_seed):
        seeds(seed)


def sample_all(seed, both):
    seed_everything(seed)
    both.wait()
    return random.random() + np.random.rand() + torch.rand(1).item()


def test_all_of_them():
    both = meeting()
    Parallel(**THREADS)(delayed(sample_all)(seed, both) for seed in range(2))  # -> GG308


def sample_forked(seed, both):
    with torch.random.fork_rng():
        return sample(seed, both)


def test_fork_rng():
    both = meeting()
    Parallel(**THREADS)(delayed(sample_forked)(seed, both) for seed in range(2))  # -> GG308


def test_submitted_one_by_one():
    both = meeting()
    with ThreadPoolExecutor(2) as executor:
        waiting = [executor.submit(sample, seed, both) for seed in range(2)]  # -> GG308
        assert all(one.result() < 1 for one in waiting)


class Model(torch.nn.Module):
    def __init__(self, seed, both):
        super().__init__()
        self.seed, self.both = seed, both
        self.layer = torch.nn.Linear(3, 3)

    def fit(self):
        self.start()
        self.both.wait()
        return torch.nn.functional.dropout(self.layer(torch.ones(3))).sum().item()

    def start(self):
        torch.manual_seed(self.seed)
        torch.nn.init.normal_(self.layer.weight)


def test_in_a_model():
    both = meeting()
    models = [Model(seed, both) for seed in range(2)]
    Parallel(**THREADS)(delayed(model.fit)() for model in models)  # -> GG308


def test_same_seed():
    both = meeting()
    drawn = Parallel(**THREADS)(delayed(sample)(0, both) for _ in range(2))  # -> GG308
    assert drawn[0] != drawn[1]


LOCK = threading.Lock()


def sample_in_turn(seed, both):
    with LOCK:
        return sample(seed, both)


def test_one_locks():
    """The other one seeds whenever it likes, such as once the lock is free again."""
    both, alone, done = meeting(), meeting(1), threading.Event()

    def draw(seed):
        both.wait()
        if seed == 0:
            sample_in_turn(seed, alone)
            done.set()
        else:
            done.wait(120)
            sample(seed, alone)

    Parallel(**THREADS)(delayed(draw)(seed) for seed in range(2))  # -> GG308


def test_dask():
    dask = pytest.importorskip("dask", reason="dask is not installed")
    both = meeting()
    tasks = [dask.delayed(sample)(seed, both) for seed in range(2)]
    dask.compute(*tasks, scheduler="threads", num_workers=2)  # -> GG308


# -- nothing to report -------------------------------------------------------------------------


def draw(both):
    both.wait()
    return random.random() + np.random.rand() + torch.rand(1).item()


def run(function, *given):
    return Parallel(**THREADS)(delayed(function)(seed, *given) for seed in range(2))


def test_draws_only():
    both = meeting()
    Parallel(**THREADS)(delayed(draw)(both) for _ in range(2))


def own_torch(seed, both):
    generator = torch.Generator().manual_seed(seed)
    both.wait()
    return torch.rand(1, generator=generator).item()


def test_own_torch_generator():
    run(own_torch, meeting())


def own_numpy(seed, both):
    rng, old = np.random.default_rng(seed), np.random.RandomState(seed)
    old.seed(seed)
    both.wait()
    return rng.random() + old.rand()


def test_own_numpy_generator():
    run(own_numpy, meeting())


def own_python(seed, both):
    rng = random.Random(seed)
    rng.seed(seed)
    both.wait()
    return rng.random()


def test_own_python_generator():
    run(own_python, meeting())


def test_seeded_before():
    seed_everything(0)
    both = meeting()
    Parallel(**THREADS)(delayed(draw)(both) for _ in range(2))


def test_seeded_in_an_initializer():
    both = meeting()
    with ThreadPoolExecutor(2, initializer=seed_everything, initargs=(0,)) as executor:
        list(executor.map(lambda _: draw(both), range(2)))


def test_one_thread():
    alone = meeting(1)
    with ThreadPoolExecutor(1) as executor:
        list(executor.map(lambda seed: sample(seed, alone), range(3)))


def test_awaited_one_by_one():
    both, single = meeting(), meeting(1)
    with ThreadPoolExecutor(2) as executor:
        list(executor.map(lambda _: both.wait(), range(2)))  # both threads are there
        for seed in range(4):
            executor.submit(sample, seed, single).result()


def locked(seed):
    with LOCK:
        torch.manual_seed(seed)
        return torch.rand(1).item()


def in_turn(seed, both):
    both.wait()
    return locked(seed)


def test_under_a_lock():
    assert run(in_turn, meeting()) == [locked(0), locked(1)]


class Sampler:
    def __init__(self):
        self.lock = threading.RLock()

    def draw(self, seed, both):
        both.wait()
        with self.lock:
            np.random.seed(seed)
            return np.random.rand()


def test_under_a_lock_of_an_object():
    run(Sampler().draw, meeting())


def perhaps_seed(number, both):
    both.wait()
    if number == 0:
        torch.manual_seed(0)
    return torch.rand(1).item()


def test_only_one_seeds():
    run(perhaps_seed, meeting())


def seed_and_rest(seed, both):
    torch.manual_seed(seed)
    both.wait()
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, generator=generator).item()


def test_nobody_draws():
    run(seed_and_rest, meeting())


def seed_another(number, both):
    (torch.manual_seed, random.seed)[number](0)
    both.wait()
    return torch.rand(1).item() if number == 0 else random.random()


def test_each_seeds_another():
    run(seed_another, meeting())


def alone(seed):
    torch.manual_seed(seed)
    return torch.rand(1).item()


def test_processes():
    drawn = Parallel(2)(delayed(alone)(0) for _ in range(2))
    assert drawn[0] == drawn[1]


def test_one_job():
    Parallel(1)(delayed(alone)(seed) for seed in range(2))


def test_wrapped_names_are_pickled():
    run(own_torch, meeting())
    assert Parallel(2)(delayed(function)(1) for function in (np.random.seed, random.seed)) == [
        None,
        None,
    ]
