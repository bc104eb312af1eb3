"""Results that `joblib.Memory` caches: with their graph, and without."""

import numpy as np
import pytest
import torch
from joblib import Memory, Parallel, delayed
from torch import nn

EXPECT = {
    "test_cached_in_a_worker": {"GG108"},
    "test_cached_in_a_worker_that_fails": {"GG108"},
    "test_cached_on_threads": {"GG108"},
    "test_tasks_on_threads_are_cached": {"GG108"},
}


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path, verbose=0)


def double(weight):
    return weight * 2


def leaf():
    return torch.ones(3, requires_grad=True)


def test_second_call(memory):
    cached = memory.cache(double)
    weight = leaf()
    cached(weight).sum().backward()  # -> GG108:warning
    assert weight.grad is not None
    weight.grad = None
    cached(weight).sum().backward()  # -> GG108:warning
    assert weight.grad is None


def test_first_call_only(memory):
    cached = memory.cache(double)
    cached(leaf()).sum().backward()  # -> GG108:warning


def parts(weight):
    return {"loss": [weight.sum()], "n": 3}


def test_in_a_dict(memory):
    memory.cache(parts)(leaf())  # -> GG108:warning


def output(model, x):
    return model(x)


def test_model_output(memory):
    cached = memory.cache(output, ignore=["model"])
    model = nn.Linear(2, 1)
    cached(model, torch.ones(4, 2))  # -> GG108


def test_call_and_shelve(memory):
    memory.cache(double).call_and_shelve(leaf())  # -> GG108


def test_cached_by_call(memory):
    memory.cache(double).call(leaf())  # -> GG108


class Features:
    def __init__(self, memory):
        self.weight = leaf()
        self.compute = memory.cache(self.compute)

    def compute(self, k):
        return self.weight * k


def test_method_of_an_object(memory):
    Features(memory).compute(2)  # -> GG108


def test_compressed(tmp_path):
    memory = Memory(tmp_path, verbose=0, compress=True)
    memory.cache(double)(leaf())  # -> GG108


def in_worker(folder):
    weight = leaf()
    return float(Memory(folder, verbose=0).cache(double)(weight).detach().sum())  # -> GG108


def test_cached_in_a_worker(tmp_path):
    assert Parallel(2)(delayed(in_worker)(str(tmp_path / f"{k}")) for k in range(2)) == [6.0, 6.0]


def failing_after(folder):
    Memory(folder, verbose=0).cache(double)(leaf())  # -> GG108
    raise LookupError("after the cache")


def test_cached_in_a_worker_that_fails(tmp_path):
    with pytest.raises(LookupError) as caught:
        Parallel(2)(delayed(failing_after)(str(tmp_path / f"{k}")) for k in range(2))
    assert not [name for name in vars(caught.value) if "gradguard" in name]


def failing(k):
    raise LookupError(k)


def test_function_that_raises(memory):
    with pytest.raises(LookupError) as caught:
        memory.cache(failing)(1)
    assert not [entry for entry in caught.traceback if "pytest_gradguard" in str(entry.path)]


def test_cached_on_threads(tmp_path):
    Parallel(2, backend="threading")(delayed(in_worker)(str(tmp_path / f"{k}")) for k in range(2))


def tripled(weight):  # -> GG108:warning
    return weight * 3


def test_tasks_on_threads_are_cached(memory):
    task = delayed(memory.cache(tripled))
    Parallel(2, backend="threading")(task(leaf() * k) for k in range(2))


def test_mapped(tmp_path):
    memory = Memory(tmp_path, verbose=0, mmap_mode="r")
    memory.cache(double)(leaf())  # -> GG108


class Estimator:
    def fit(self, x):
        weight = leaf()
        self.loss_ = (weight * x).sum()
        self.loss_.backward()
        self.weight_ = weight.detach().numpy()
        return self


def fitted(x):
    return Estimator().fit(x)


def test_estimator_that_keeps_its_loss(memory):
    cached = memory.cache(fitted)
    for _ in range(2):
        assert cached(2.0).weight_.shape == (3,)


def detached(weight):
    return (weight * 2).detach()


def test_detached(memory):
    cached = memory.cache(detached)
    for _ in range(2):
        cached(leaf())


def test_leaf(memory):
    cached = memory.cache(leaf)
    for _ in range(2):
        assert cached().requires_grad


def parameters(size):
    return nn.Parameter(torch.ones(size))


def test_parameters(memory):
    for _ in range(2):
        memory.cache(parameters)(2)


def network(size):
    model = nn.Linear(size, size)
    model(torch.ones(1, size)).sum().backward()
    return model


def test_module(memory):
    for _ in range(2):
        memory.cache(network)(2)


def test_under_no_grad(memory):
    with torch.no_grad():
        for _ in range(2):
            memory.cache(double)(leaf())


def squares(values):
    return np.square(values)


def test_arrays(memory):
    for _ in range(2):
        memory.cache(squares)(np.arange(3))


def total(weight):
    return float(weight.detach().sum())


def test_only_the_argument_has_history(memory):
    for _ in range(2):
        memory.cache(total)(leaf() * 2)


def from_number(number):
    return leaf() * number


def test_tasks_are_cached(memory):
    tasks = [delayed(memory.cache(from_number))(number) for number in range(2)]
    Parallel(2)(tasks)  # -> GG108 GG102


def test_no_cache():
    cached = Memory(None, verbose=0).cache(double)
    weight = leaf()
    for _ in range(2):
        weight.grad = None
        cached(weight).sum().backward()
        assert weight.grad is not None


def refused(weight):
    return weight * 2, (k for k in range(2))


def test_refused_result(memory):
    with pytest.warns(Warning, match="cache"):
        memory.cache(refused)(leaf())
