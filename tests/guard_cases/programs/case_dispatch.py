"""How tasks are dispatched and results come back: batches, generators, nesting, threads."""

import functools
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from joblib import Parallel, delayed, parallel_config
from torch import nn

EXPECT = {
    "test_generator_from_a_helper": {"GG101", "GG102"},
    "test_a_thread_of_an_earlier_test": {"GG101"},
    "test_helper_that_calls_parallel": {"GG101", "GG102"},
    "test_helper_of_a_helper": {"GG101", "GG102"},
    "test_recursion": {"GG101"},
    "test_decorated_caller": {"GG101"},
}
MAY = {
    # Dropped at once, the tasks may never be pickled, or their results never fetched.
    "test_generator_dropped": {"GG101", "GG102"},
    "test_processes_in_processes": {"GG101", "GG102"},
}

DETAILS = {
    "test_late_task": {"GG101": {"object": "args[0]", "shape": [2], "backend": "loky"}},
    "test_generator_consumed": {
        "GG101": {"object": "args[0]", "direction": "argument"},
        "GG102": {"direction": "result", "shape": [3]},
        "GG103": {"direction": "result", "shape": [3]},
    },
    "test_processes_in_plain_threads": {"GG101": {"shape": [3], "backend": "loky"}},
}


def leaf(size=3):
    return torch.ones(size, requires_grad=True)


def number(value):
    return float(value.detach().sum()) if isinstance(value, torch.Tensor) else float(value)


def times(x, k):
    return x * k


def live_late(k):
    return torch.ones(2, requires_grad=True) * k if k == 49 else torch.full((2,), float(k))


def live(k):
    return torch.ones(2, requires_grad=True) * k


def clean(k):
    return torch.full((2,), float(k))


# --- batches -------------------------------------------------------------------------------


def test_pre_dispatch_one():
    x = leaf()
    out = Parallel(n_jobs=2, pre_dispatch=1)(delayed(number)(x) for _ in range(6))  # -> GG101
    assert out == [3.0] * 6


def test_pre_dispatch_all():
    x = leaf()
    out = Parallel(n_jobs=2, pre_dispatch="all")(delayed(number)(x) for _ in range(6))  # -> GG101
    assert out == [3.0] * 6


def test_late_task():
    x = leaf(2)
    items = [*range(49), x]
    out = Parallel(n_jobs=2, pre_dispatch="2*n_jobs")(delayed(number)(i) for i in items)  # -> GG101
    assert out == [*map(float, range(49)), 2.0]


def test_batch_size_one():
    x = leaf()
    out = Parallel(n_jobs=2, batch_size=1)(delayed(number)(x) for _ in range(12))  # -> GG101
    assert out == [3.0] * 12


def test_batch_size_ten():
    items = [*range(25), leaf()]
    out = Parallel(n_jobs=2, batch_size=10)(delayed(number)(item) for item in items)  # -> GG101
    assert out[-1] == 3.0


def test_last_of_many_tiny_tasks():
    items = [*range(2000), leaf()]
    out = Parallel(n_jobs=2)(delayed(number)(item) for item in items)  # -> GG101
    assert sum(out) == sum(range(2000)) + 3


def test_late_live_result():
    out = Parallel(n_jobs=2, batch_size=4)(delayed(live_late)(k) for k in range(50))  # -> GG102
    assert [t.requires_grad for t in out] == [False] * 49 + [True]


def tasks_of(x):
    for k in range(8):
        y = x * k
        yield delayed(number)(y if k == 7 else y.detach())


def test_shipped_by_a_task_generator():
    x = leaf()
    out = Parallel(n_jobs=2, pre_dispatch=2)(tasks_of(x))  # -> GG101
    assert out == [3.0 * k for k in range(8)]


def test_many_tiny_clean_tasks():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(number)(k) for k in range(3000))
    (x * sum(out)).sum().backward()
    assert x.grad is not None


# --- generators ----------------------------------------------------------------------------


def test_generator_consumed():
    x = leaf()
    out = Parallel(n_jobs=2, return_as="generator")(
        delayed(times)(x, k) for k in (1, 2)
    )  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_generator_in_a_loop():
    model = nn.Linear(3, 1)
    rows = torch.ones(4, 3)
    parallel = Parallel(n_jobs=2, return_as="generator", pre_dispatch=2)
    for out in parallel(delayed(model)(row) for row in rows):  # -> GG102
        out.sum().backward()  # -> GG103:error
    assert model.weight.grad is None


def test_generator_half_consumed():
    x = leaf()
    parallel = Parallel(n_jobs=2, return_as="generator")
    results = parallel(delayed(times)(x, k) for k in range(6))  # -> GG101 GG102
    first = [next(results) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del results
        gc.collect()
    assert [t.tolist()[0] for t in first] == [0.0, 1.0, 2.0]


def test_generator_dropped():
    x = leaf()
    results = Parallel(n_jobs=2, return_as="generator")(
        delayed(times)(x, k) for k in (1, 2)
    )  # -> GG101? GG102?
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del results
        gc.collect()
    assert x.grad is None


def test_generator_unordered():
    x = leaf()
    parallel = Parallel(n_jobs=2, return_as="generator_unordered")
    out = list(parallel(delayed(times)(x, k) for k in range(4)))  # -> GG101 GG102
    torch.stack(out).sum().backward()  # -> GG103:error
    assert sorted(t.tolist()[0] for t in out) == [0.0, 1.0, 2.0, 3.0]
    assert x.grad is None


def stream(x, size):
    return Parallel(n_jobs=2, return_as="generator")(
        delayed(times)(x, k) for k in range(size)
    )  # -> GG101 GG102


def test_generator_from_a_helper():
    assert [t.tolist() for t in stream(leaf(1), 3)] == [[0.0], [1.0], [2.0]]


def test_clean_generator():
    x = leaf(2)
    results = Parallel(n_jobs=2, return_as="generator")(delayed(clean)(k) for k in range(4))
    sum((t * x).sum() for t in results).backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_clean_generator_unordered():
    parallel = Parallel(n_jobs=2, return_as="generator_unordered")
    assert sorted(parallel(delayed(number)(k) for k in range(4))) == [0.0, 1.0, 2.0, 3.0]


# --- one Parallel, several calls -----------------------------------------------------------


def test_context_manager_reused():
    x = leaf()
    losses = []
    with Parallel(n_jobs=2) as parallel:
        for k in range(3):
            out = parallel(delayed(times)(x, j + k) for j in range(2))  # -> GG101 GG102
            losses.append(sum(out).sum())
    sum(losses).backward()  # -> GG103:error
    assert x.grad is None


def test_context_manager_two_lines():
    x = leaf()
    with Parallel(n_jobs=2) as parallel:
        assert parallel(delayed(number)(k) for k in range(2)) == [0.0, 1.0]
        assert parallel(delayed(number)(x) for _ in range(2)) == [3.0, 3.0]  # -> GG101
        assert parallel(delayed(live)(k) for k in range(2))[0].is_leaf  # -> GG102
        assert parallel(delayed(number)(x.detach()) for _ in range(2)) == [3.0, 3.0]


def test_same_object_many_rounds():
    parallel = Parallel(n_jobs=2)
    for k in range(3):
        function = live if k == 2 else clean
        out = parallel(delayed(function)(j) for j in range(2))  # -> GG102
        assert out[0].requires_grad == (k == 2)


# --- nested calls --------------------------------------------------------------------------


def threads_inside(x, k):
    parts = Parallel(n_jobs=2, backend="threading")(delayed(times)(x, j) for j in range(3))
    return torch.stack(parts).sum() * k


def test_threads_in_processes():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(threads_inside)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).backward()  # -> GG103:error
    assert x.grad is None


def default_inside(x):
    """Inside a loky worker the default backend is threads: the inner graph is whole."""
    leaf_here = x.detach().requires_grad_()
    parts = Parallel(n_jobs=2)(delayed(times)(leaf_here, j) for j in range(3))
    torch.stack(parts).sum().backward()
    return leaf_here.grad.tolist()


def test_nested_default_in_processes():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(default_inside)(x) for _ in range(2))  # -> GG101
    assert out == [[3.0, 3.0, 3.0]] * 2


def test_nested_threads_in_clean_processes():
    out = Parallel(n_jobs=2)(delayed(default_inside)(torch.ones(3)) for _ in range(2))
    assert out == [[3.0, 3.0, 3.0]] * 2


def processes_inside(x, options):
    """Below joblib's own threads, loky runs one job in this process: nothing is copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(Parallel(n_jobs=2, **options)(delayed(times)(x, j) for j in range(3)))


def test_processes_in_joblib_threads():
    x = leaf()
    out = Parallel(n_jobs=2, backend="threading")(
        delayed(processes_inside)(x, {"backend": "loky"}) for _ in range(2)
    )
    torch.stack(out).sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def config_inside(x):
    with parallel_config(backend="loky", n_jobs=2):
        return processes_inside(x, {})


def test_processes_in_joblib_threads_by_config():
    x = leaf()
    out = Parallel(n_jobs=2, prefer="threads")(delayed(config_inside)(x) for _ in range(2))
    torch.stack(out).sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_threads_in_threads():
    x = leaf()
    out = Parallel(n_jobs=2, prefer="threads")(delayed(threads_inside)(x, k) for k in (1, 2))
    sum(out).backward()
    assert x.grad.tolist() == [9.0] * 3


def test_threads_generator():
    x = leaf()
    parallel = Parallel(n_jobs=2, backend="threading", return_as="generator")
    sum(parallel(delayed(times)(x, k) for k in range(3))).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def loky_inside(size):
    w = torch.ones(size, requires_grad=True)
    with parallel_config(backend="loky", n_jobs=2):
        parts = Parallel()(delayed(times)(w, j) for j in range(2))  # -> GG101? GG102?
    return sum(float(t.sum()) for t in parts)


def test_processes_in_processes():
    assert Parallel(n_jobs=2)(delayed(loky_inside)(k) for k in (2,)) == [2.0]


def test_processes_in_processes_default():
    out = Parallel(n_jobs=2)(delayed(default_inside)(torch.ones(3)) for _ in range(2))
    assert out == [[3.0] * 3] * 2


# --- several threads call Parallel ---------------------------------------------------------


def test_processes_in_plain_threads():
    x = leaf()
    results = {}

    def call(name):
        results[name] = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102

    threads = [threading.Thread(target=call, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.stack(results["a"] + results["b"]).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_two_threads_one_clean():
    x = leaf()
    results = {}
    barrier = threading.Barrier(2)

    def dirty():
        barrier.wait(30)
        results["dirty"] = Parallel(n_jobs=2)(delayed(number)(x) for _ in range(20))  # -> GG101

    def tidy():
        barrier.wait(30)
        results["tidy"] = Parallel(n_jobs=2)(delayed(number)(x.detach()) for _ in range(20))

    threads = [threading.Thread(target=target) for target in (dirty, tidy)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["dirty"] == results["tidy"] == [3.0] * 20


older = ThreadPoolExecutor(1)


def test_a_thread_is_started():
    older.submit(int).result()


def of_an_older_thread(x):
    Parallel(2)(delayed(total)(x) for _ in range(2))  # -> GG101


def total(x):
    return float(x.sum())


def test_a_thread_of_an_earlier_test():
    older.submit(of_an_older_thread, leaf()).result()


def test_thread_pool():
    def call(function):
        return Parallel(n_jobs=2)(delayed(function)(k) for k in range(4))  # -> GG102

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(call, [live, clean])
    assert [t.requires_grad for t in first + second] == [True] * 4 + [False] * 4


def test_threads_after_each_other():
    x = leaf()
    losses = []

    def step(k):
        out = Parallel(n_jobs=2)(delayed(times)(x, j) for j in (k, k + 1))  # -> GG101 GG102
        loss = sum(out).sum()
        loss.backward()  # -> GG103:error
        losses.append(loss.item())

    for k in range(2):
        thread = threading.Thread(target=step, args=(k,))
        thread.start()
        thread.join()
    assert losses == [3.0, 9.0]
    assert x.grad is None


def test_threads_each_with_threads():
    x = leaf()

    def call(k):
        return sum(Parallel(n_jobs=2, backend="threading")(delayed(times)(x, j) for j in (1, k)))

    with ThreadPoolExecutor(2) as pool:
        sum(pool.map(call, [1, 2])).sum().backward()
    assert x.grad.tolist() == [5.0] * 3


def test_clean_threads_with_processes():
    def call(k):
        return sum(Parallel(n_jobs=2)(delayed(number)(j) for j in range(k)))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(call, [3, 4])) == [3.0, 6.0]


# --- where the call is ---------------------------------------------------------------------


def run_all(function, x, size):
    return Parallel(n_jobs=2)(delayed(function)(x, k) for k in range(size))  # -> GG101 GG102


def run_pairs(x):
    return run_all(times, x, 2)


def test_helper_that_calls_parallel():
    assert run_all(times, leaf(1), 2)[1].tolist() == [1.0]


def test_helper_of_a_helper():
    assert run_pairs(leaf(1))[1].tolist() == [1.0]


def test_call_over_several_lines():
    x = leaf()
    out = Parallel(
        n_jobs=2,
        batch_size=1,
    )(
        delayed(times)(
            x,
            k,
        )
        for k in range(3)
    )  # -> GG101 GG102
    assert out[2].tolist() == [2.0] * 3


def test_comprehension():
    out = [Parallel(n_jobs=2)(delayed(f)(k) for k in (1, 2)) for f in (clean, live)]  # -> GG102
    assert [t.requires_grad for t in out[0] + out[1]] == [False, False, True, True]


def test_lambda_that_calls_parallel():
    call = lambda x: Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2))  # noqa: E731  # -> GG101
    assert call(leaf()) == [3.0, 3.0]


def descend(x, depth):
    if depth:
        return descend(x * 1, depth - 1)
    return Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2))  # -> GG101


def test_recursion():
    assert descend(leaf(), 5) == [3.0, 3.0]


def counted(function):
    @functools.wraps(function)
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args)

    wrapper.calls = 0
    return wrapper


@counted
def decorated(x):
    return Parallel(n_jobs=2)(delayed(number)(x) for _ in range(2))  # -> GG101


def test_decorated_caller():
    assert decorated(leaf()) == [3.0, 3.0]
    assert decorated.calls == 1
