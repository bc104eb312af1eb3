"""Programs without torch: the guard has nothing to say, and imports nothing."""

import functools
import gc
import sys
import warnings

import joblib
import numpy as np
from joblib import Parallel, delayed


class Tensor:
    """No torch tensor, although it looks like one."""

    def __init__(self, data):
        self.data = data
        self.requires_grad = True
        self.grad_fn = object
        self.grad = None

    def backward(self):
        self.grad = 1

    def sum(self):
        return Tensor(self.data.sum())


class Loud:
    """Cannot be asked for anything but what pickling needs."""

    def __init__(self):
        self.value = 3

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"nobody has any business with {name}")


def square(x):
    return x**2


def kind_of(array):
    return type(array).__name__, float(array[0])


def scale(factor, array):
    return (factor * array).sum()


def write(array, k):
    array[k] = k


def frameworks():
    return sorted({"torch", "tensorflow", "libcst", "rich"} & set(sys.modules))


def test_numbers():
    assert Parallel(n_jobs=2)(delayed(square)(k) for k in range(5)) == [0, 1, 4, 9, 16]


def test_arrays():
    rows = np.arange(6.0).reshape(2, 3)
    out = Parallel(n_jobs=2)(delayed(square)(row) for row in rows)
    assert np.array_equal(np.stack(out), rows**2)


def test_large_arrays_are_mapped():
    big = np.ones(300_000)
    out = Parallel(n_jobs=2, max_nbytes="1M")(delayed(kind_of)(big) for _ in range(2))
    assert out == [("memmap", 1.0)] * 2
    plain = Parallel(n_jobs=2, max_nbytes=None)(delayed(kind_of)(big) for _ in range(2))
    assert plain == [("ndarray", 1.0)] * 2


def test_structured_and_object_arrays():
    table = np.array([(1, 2.0), (3, 4.0)], dtype=[("a", int), ("b", float)])
    cells = np.array([None, "x", {"k": 1}], dtype=object)
    out = Parallel(n_jobs=2)(delayed(len)(array) for array in (table, cells))
    assert out == [2, 3]


def test_lambda():
    offset = np.arange(3)
    out = Parallel(n_jobs=2)(delayed(lambda k: (offset + k).sum())(k) for k in range(2))
    assert out == [3, 6]


def test_memory(tmp_path):
    calls = []
    memory = joblib.Memory(tmp_path, verbose=0)

    @memory.cache(ignore=["log"])
    def slow(k, log):
        log.append(k)
        return k * 2

    assert [slow(3, calls), slow(3, calls)] == [6, 6]
    assert calls == [3]


def test_memory_in_workers(tmp_path):
    cached = joblib.Memory(tmp_path, verbose=0).cache(square)
    for _ in range(2):
        assert Parallel(n_jobs=2)(delayed(cached)(k) for k in range(3)) == [0, 1, 4]
    assert cached.check_call_in_cache(2)


def test_partial_and_closure():
    array = np.arange(4.0)
    work = functools.partial(scale, array=array)
    assert Parallel(n_jobs=2)(delayed(work)(k) for k in range(3)) == [0.0, 6.0, 12.0]


def test_many_tiny_tasks():
    assert sum(Parallel(n_jobs=2)(delayed(abs)(-k) for k in range(5000))) == sum(range(5000))


def test_generator():
    out = Parallel(n_jobs=2, return_as="generator_unordered")(delayed(abs)(-k) for k in range(9))
    assert sorted(out) == list(range(9))


def test_generator_dropped():
    results = Parallel(n_jobs=2, return_as="generator")(delayed(abs)(-k) for k in range(6))
    assert next(results) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del results
        gc.collect()
    assert Parallel(n_jobs=2)(delayed(abs)(-k) for k in (1, 2)) == [1, 2]


def test_context_manager():
    with Parallel(n_jobs=2) as parallel:
        assert [sum(parallel(delayed(abs)(-k) for k in range(n))) for n in (2, 3)] == [1, 3]


def test_multiprocessing():
    out = Parallel(n_jobs=2, backend="multiprocessing")(delayed(square)(k) for k in range(3))
    assert out == [0, 1, 4]


def test_threads_share_the_array():
    array = np.zeros(4)
    Parallel(n_jobs=2, require="sharedmem")(delayed(write)(array, k) for k in range(4))
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_own_class_with_requires_grad():
    class Config:
        requires_grad = True
        grad_fn = "none"

    out = Parallel(n_jobs=2)(delayed(getattr)(Config(), "requires_grad") for _ in range(2))
    assert out == [True, True]


def test_own_class_named_tensor():
    tensor = Tensor(np.arange(3.0))
    out = Parallel(n_jobs=2)(delayed(Tensor.sum)(tensor) for _ in range(2))
    out[0].backward()
    assert (out[0].grad, tensor.grad, out[0].data) == (1, None, 3.0)
    loud = Parallel(n_jobs=2)(delayed(getattr)(Loud(), "value") for _ in range(2))
    assert loud == [3, 3]


def test_random_state_of_its_own():
    out = Parallel(n_jobs=2)(
        delayed(lambda seed: np.random.default_rng(seed).integers(1000))(k) for k in range(3)
    )
    assert out == [int(np.random.default_rng(k).integers(1000)) for k in range(3)]


def test_progress_is_kept(capsys):
    class Counting(Parallel):
        seen = 0

        def print_progress(self):
            Counting.seen += 1
            super().print_progress()

    out = Counting(n_jobs=2, verbose=0)(delayed(abs)(-k) for k in range(4))
    assert out == [0, 1, 2, 3]
    assert Counting.seen > 0


def test_workers_have_no_framework():
    out = Parallel(n_jobs=2)(delayed(frameworks)() for _ in range(2))
    assert out == [[], []]


def test_nothing_was_imported():
    assert frameworks() == []
