"""Workers without joblib: pools and executors of the standard library and of loky, and processes.

The standard pickler refuses a tensor with history, aloud; a leaf arrives over shared memory.
"""

import asyncio
import functools
import multiprocessing
import threading
from concurrent.futures import (
    CancelledError,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import MaybeEncodingError, ThreadPool

import joblib
import numpy as np
import pytest
import torch
import torch.multiprocessing as torch_multiprocessing
from joblib import Parallel, delayed
from joblib.externals import loky
from torch import nn

EXPECT = {
    "test_loky_history": {"GG101", "GG102", "GG103"},
    "test_loky_map": {"GG101", "GG102", "GG103"},
    "test_loky_in_a_helper": {"GG101", "GG102", "GG103"},
}

DETAILS = {
    "test_apply": {
        "GG101": {
            "backend": "multiprocessing",
            "direction": "argument",
            "object": "args[0]",
            "shape": [3],
        }
    },
    "test_keyword": {"GG101": {"object": "kwargs['w']"}},
    "test_executor_submit": {"GG101": {"object": "args[0]", "direction": "argument"}},
    "test_loky_submit": {
        "GG101": {"backend": "loky", "object": "args[0]"},
        "GG102": {"backend": "loky", "object": "result", "direction": "result"},
        "GG103": {"backend": "loky", "direction": "result"},
    },
}

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
SHARED = torch.ones(3, requires_grad=True)


class Tagged(torch.Tensor):
    pass


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k=2):
    return x * k


def number(x, k=1, w=None):
    return float((x if w is None else w).detach().sum()) * k


def own_leaf(k):
    return torch.ones(3, requires_grad=True) * k


def forward(model, rows):
    with torch.no_grad():
        return float(model(rows).sum())


def left_behind(model, rows):
    loss = model(rows).sum()
    loss.backward()
    return loss.item()


def gradients(model, rows):
    model(rows).sum().backward()
    return [p.grad for p in model.parameters()]


def train(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(rows).sum()
    loss.backward()
    optimizer.step()
    return loss.item()


def train_and_return(model, rows):
    train(model, rows)
    return {name: p.detach() for name, p in model.named_parameters()}


def fit(seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    train(model, torch.ones(2, 3))
    return model


def from_global(k):
    return number(SHARED) * k


def add_in_place(x, k):
    with torch.no_grad():
        x.add_(k)


def fail(x):
    raise KeyError(f"no such key: {x}")


def die(_):
    import os

    os._exit(3)


def with_rank(rank, x):
    assert x.requires_grad


def check_lost(x, *results):
    torch.stack(results).sum().backward()  # -> GG103:error
    assert x.grad is None


@pytest.fixture(scope="module")
def pool():
    with FORK.Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def executor():
    with ProcessPoolExecutor(2, mp_context=FORK) as executor:
        yield executor


def test_apply(pool):
    assert pool.apply(number, (leaf(),)) == 3.0  # -> GG101:warning


def test_apply_async(pool):
    pending = [pool.apply_async(number, (leaf(), k)) for k in (1, 2)]  # -> GG101
    assert [one.get() for one in pending] == [3.0, 6.0]


def test_map(pool):
    assert pool.map(number, [leaf(), leaf()]) == [3.0, 3.0]  # -> GG101


def test_map_async(pool):
    pending = pool.map_async(number, [leaf(), leaf()])  # -> GG101
    assert pending.get() == [3.0, 3.0]


def test_imap(pool):
    assert list(pool.imap(number, (leaf() for _ in range(3)))) == [3.0] * 3  # -> GG101


def test_imap_in_chunks(pool):
    out = pool.imap(number, (leaf() for _ in range(5)), chunksize=2)  # -> GG101
    assert list(out) == [3.0] * 5


def test_imap_unordered(pool):
    assert set(pool.imap_unordered(number, [leaf(), leaf()])) == {3.0}  # -> GG101


def test_starmap(pool):
    assert pool.starmap(number, [(leaf(), 2), (leaf(), 3)]) == [6.0, 9.0]  # -> GG101


def test_keyword(pool):
    assert pool.apply(number, (1,), {"w": leaf()}) == 3.0  # -> GG101


def test_partial(pool):
    work = functools.partial(number, leaf())
    assert pool.map(work, [1, 2]) == [3.0, 6.0]  # -> GG101


def test_only_the_last(pool):
    assert pool.map(number, [torch.ones(3)] * 20 + [leaf()]) == [3.0] * 21  # -> GG101


def test_tensor_subclass_with_history(pool):
    x = leaf().as_subclass(Tagged) * 2
    assert pool.apply(number, (x,)) == 6.0  # -> GG101


def test_two_calls_on_one_tensor(pool):
    x = leaf()
    assert pool.apply(number, (x.detach(),)) == 3.0
    assert pool.apply(number, (x,)) == 3.0  # -> GG101
    assert pool.map(number, [x, x]) == [3.0, 3.0]  # -> GG101


def test_spawned_pool():
    with SPAWN.Pool(1) as pool:
        assert pool.map(number, [leaf(), leaf()]) == [3.0, 3.0]  # -> GG101


def test_torch_pool():
    with torch_multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(number, [leaf(), leaf()]) == [3.0, 3.0]  # -> GG101


def test_initializer_of_a_spawned_pool():
    with SPAWN.Pool(1, initializer=number, initargs=(leaf(),)) as pool:  # -> GG101
        assert pool.map(abs, [-1, -2]) == [1, 2]


def test_spawned_process():
    process = SPAWN.Process(target=number, args=(leaf(),))
    process.start()  # -> GG101
    process.join()
    assert process.exitcode == 0


def test_gradients_left_in_a_pool(pool):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.clone()
    pool.starmap(left_behind, [(model, torch.ones(2, 3))] * 2)
    optimizer.step()  # -> GG106:error
    assert torch.equal(before, model.weight)


def test_gradients_left_in_an_executor(executor):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor.submit(left_behind, model, torch.ones(2, 3)).result()
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_executor_submit(executor):
    assert executor.submit(number, leaf(), k=2).result() == 6.0  # -> GG101


def test_executor_map(executor):
    assert list(executor.map(number, [leaf(), leaf()], [1, 2])) == [3.0, 6.0]  # -> GG101


def test_executor_map_in_chunks(executor):
    out = executor.map(number, [leaf()] * 5, chunksize=2)  # -> GG101
    assert list(out) == [3.0] * 5


def test_executor_from_an_event_loop(executor):
    async def work():
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, number, leaf())  # -> GG101

    assert asyncio.run(work()) == 3.0


def test_executor_as_completed(executor):
    futures = {executor.submit(number, leaf(), k) for k in (1, 2)}  # -> GG101
    assert {future.result() for future in as_completed(futures)} == {3.0, 6.0}


def test_loky_submit():
    x = leaf()
    out = loky.get_reusable_executor(2).submit(times, x).result()  # -> GG101 GG102
    out.sum().backward()  # -> GG103:error
    assert x.grad is None


def test_loky_history():
    x = leaf()
    executor = loky.get_reusable_executor(2)
    check_lost(x, executor.submit(times, x.clone()).result())  # -> GG101 GG102


def test_loky_map():
    x = leaf()
    executor = loky.get_reusable_executor(2)
    check_lost(x, *executor.map(times, [x, x], [1, 2]))  # -> GG101 GG102


def test_loky_own_leaf():
    out = loky.get_reusable_executor(2).submit(own_leaf, 2).result()  # -> GG102
    out.sum().backward()  # -> GG103:warning
    assert out.grad is not None


def submitted(executor, *task):
    return executor.submit(*task)  # -> GG101 GG102


def test_loky_in_a_helper():
    x = leaf()
    check_lost(x, submitted(loky.get_reusable_executor(2), lambda t: t * 2, x).result())


# --- nothing to report ---------------------------------------------------------------------


def test_history_is_refused(pool):
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        pool.apply(number, (leaf() * 2,))
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        pool.map(number, [leaf() * 2])
    assert pool.map(number, [torch.ones(3)]) == [3.0]


def test_result_with_history_is_refused(pool):
    with pytest.raises(MaybeEncodingError, match="Cowardly refusing"):
        pool.apply(own_leaf, (2,))


def test_executor_refuses_history(executor):
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        executor.submit(number, leaf() * 2).result()
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        executor.submit(own_leaf, 2).result()


def test_detached(pool, executor):
    x = leaf()
    out = pool.map(times, [x.detach()] * 2) + list(executor.map(times, [x.detach()] * 2))
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [8.0] * 3


def test_module(pool, executor):
    model = nn.Linear(3, 1)
    rows = torch.ones(2, 3)
    assert pool.starmap(forward, [(model, rows)] * 2) == [forward(model, rows)] * 2
    assert executor.submit(forward, model, rows).result() == forward(model, rows)


def test_numpy(pool, executor):
    rows = np.arange(6.0).reshape(2, 3)
    assert pool.map(np.sum, rows) == list(executor.map(np.sum, rows)) == [3.0, 12.0]


def test_trained_in_shared_memory():
    model = nn.Linear(3, 1).share_memory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    with torch_multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(train, [(model, torch.ones(2, 3))] * 2)
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_shared_on_purpose(pool):
    x = leaf().share_memory_()
    pool.starmap(add_in_place, [(x, 1.0), (x, 2.0)])
    assert x.tolist() == [4.0] * 3


def test_inherited_by_fork(pool):
    assert pool.map(from_global, [1, 2]) == [3.0, 6.0]


def test_forked_process():
    process = FORK.Process(target=number, args=(leaf() * 2,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_forked_initializer():
    with FORK.Pool(1, initializer=number, initargs=(leaf() * 2,)) as pool:
        assert pool.map(abs, [-1]) == [1]


def test_gradients_returned(pool):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for p, gradient in zip(
        model.parameters(), pool.apply(gradients, (model, torch.ones(2, 3))), strict=True
    ):
        p.grad = gradient
    optimizer.step()


def test_parameters_returned(executor):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.load_state_dict(executor.submit(train_and_return, model, torch.ones(2, 3)).result())
    optimizer.step()


def test_error_in_a_pool(pool):
    with pytest.raises(KeyError) as caught:
        pool.apply(fail, (1,))
    assert caught.value.args == ("no such key: 1",)
    assert "in fail" in str(caught.value.__cause__)
    assert "gradguard" not in str(caught.value.__cause__)
    with pytest.raises(KeyError):
        pool.map(fail, [1, 2])


def test_error_in_an_executor(executor):
    future = executor.submit(fail, 1)
    assert isinstance(future.exception(), KeyError)
    assert "in fail" in str(future.exception().__cause__)
    assert "gradguard" not in str(future.exception().__cause__)
    with pytest.raises(KeyError):
        list(executor.map(fail, [1, 2]))


def broken():
    yield 1
    raise ValueError("the iterable ends here")


def test_error_of_the_iterable(pool):
    out = pool.imap(abs, broken())
    assert next(out) == 1
    with pytest.raises(ValueError, match="ends here"):
        next(out)


def test_imap_is_lazy(pool):
    """What the pool pulls it pulls in its own thread, and not before it is asked to."""
    threads = []

    def items():
        for k in range(3):
            threads.append(threading.current_thread() is threading.main_thread())
            yield k

    assert list(pool.imap(abs, items())) == [0, 1, 2]
    assert threads == [False] * 3
    assert list(pool.map(abs, items())) == [0, 1, 2]
    assert threads[3:] == [True] * 3


def test_callbacks(pool):
    heard = []
    pool.apply_async(abs, (-1,), callback=heard.append).wait()
    pool.apply_async(fail, (1,), error_callback=lambda e: heard.append(type(e))).wait()
    pool.map_async(abs, [-1, -2], callback=heard.append).wait()
    assert heard == [1, KeyError, [1, 2]]


def test_lambda_cannot_be_pickled(pool, executor):
    with pytest.raises(Exception, match=r"Can't pickle|Can't get local"):
        pool.apply(lambda: 1)
    with pytest.raises(Exception, match=r"Can't pickle|Can't get local"):
        executor.submit(lambda: 1).result()


def test_cancelled():
    go = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        first, second = threads.submit(go.wait), threads.submit(abs, 1)
        assert second.cancel()
        go.set()
        assert first.result()
    with pytest.raises(CancelledError):
        second.result()


def test_broken_pool():
    with ProcessPoolExecutor(1, mp_context=FORK) as executor, pytest.raises(BrokenProcessPool):
        executor.submit(die, 1).result()


def test_after_shutdown():
    executor = ProcessPoolExecutor(1, mp_context=FORK)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        executor.submit(abs, 1)
    with FORK.Pool(1) as pool:
        pass
    with pytest.raises(ValueError, match="not running"):
        pool.apply(abs, (1,))


def test_wrong_calls(executor, pool):
    with pytest.raises(TypeError):
        executor.submit()
    with pytest.raises(TypeError):
        pool.apply()
    with pytest.raises(ValueError, match="chunksize must be"):
        executor.map(abs, [1], chunksize=0)


def test_next_with_timeout(pool):
    out = pool.imap(abs, [-1])
    assert out.next(timeout=60) == 1


def test_thread_pool():
    x = leaf()
    with ThreadPool(2) as pool:
        sum(pool.map(times, [x, x])).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


def test_thread_executor():
    x = leaf()
    with ThreadPoolExecutor(2) as executor:
        sum(executor.map(times, [x, x])).sum().backward()
        executor.submit(times, x).result().sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_loky_detached():
    x = leaf()
    executor = loky.get_reusable_executor(2)
    done, _ = wait([executor.submit(times, x.detach()) for _ in (1, 2)])
    (sum(future.result() for future in done) * x).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


def test_loky_trained_models():
    for model in loky.get_reusable_executor(2).map(fit, (1, 2)):
        model(torch.ones(2, 3)).sum().backward()
        assert model.weight.grad is not None


def test_joblib_is_watched_once():
    loky.get_reusable_executor(2).shutdown()  # joblib needs an executor of its own kind
    x = leaf()
    assert Parallel(n_jobs=2)(delayed(number)(x) for _ in (1, 2)) == [3.0, 3.0]  # -> GG101
    with joblib.parallel_config("threading", n_jobs=2):
        sum(Parallel()(delayed(times)(x) for _ in (1, 2))).sum().backward()
    assert x.grad is not None


def test_data_loader():
    rows = torch.utils.data.TensorDataset(torch.ones(4, 3))
    loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=1)
    assert [len(batch[0]) for batch in loader] == [2, 2]


def test_types_of_what_is_returned(pool, executor):
    from concurrent.futures import Future
    from multiprocessing.pool import AsyncResult, IMapIterator

    assert type(executor.submit(abs, 1)) is Future
    assert type(pool.apply_async(abs, (1,))) is AsyncResult
    assert type(pool.imap(abs, [1])) is IMapIterator
