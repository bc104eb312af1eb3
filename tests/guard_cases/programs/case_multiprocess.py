"""`multiprocess` and what stands on it: pools whose pickler is dill, pathos, `datasets`.

Torch's own reductions are not registered with dill: where the standard library refuses a tensor
with history, it arrives as a leaf here.
"""

import os
import random

import numpy as np
import pytest
import torch
from torch import nn

try:
    import multiprocess
except ImportError:
    multiprocess = None

pytestmark = pytest.mark.skipif(multiprocess is None, reason="multiprocess is not installed")

DETAILS = {
    "test_history_as_argument": {
        "GG101": {"backend": "multiprocess", "direction": "argument", "object": "args[0]"}
    },
    "test_history_in_a_result": {
        "GG102": {"backend": "multiprocess", "direction": "result", "object": "result"}
    },
}

FORK = multiprocess and multiprocess.get_context("fork")


def leaf():
    return torch.ones(3, requires_grad=True)


def number(x):
    return float(x.detach().sum())


def times(x, k=2):
    return x * k


def own_history(k):
    return torch.ones(3, requires_grad=True) * k


def backward(model, rows):
    model(rows).sum().backward()


def gradients(model, rows):
    backward(model, rows)
    return [parameter.grad for parameter in model.parameters()]


def train(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model, rows)
    optimizer.step()
    return model.state_dict()


def drawn(rng):
    return float(rng.normal())


def drawn_from(seed):
    return float(np.random.default_rng(seed).normal())


def on_gpu(k):
    return torch.full((2,), k, device="cuda").sum().item()


@pytest.fixture(scope="module")
def pool():
    with FORK.Pool(2) as pool:
        yield pool


def test_history_as_argument(pool):
    assert pool.apply(number, (leaf() * 2,)) == 6.0  # -> GG101:warning


def test_leaf(pool):
    assert pool.map(number, [leaf(), leaf()]) == [3.0, 3.0]  # -> GG101


def test_captured_by_a_lambda(pool):
    weight = leaf() * 2
    assert pool.map(lambda k: float((weight * k).detach().sum()), [1, 2]) == [6.0, 12.0]  # -> GG101


def test_history_in_a_result(pool):
    out = pool.apply(own_history, (2,))  # -> GG102:warning
    assert out.requires_grad
    assert out.grad_fn is None


def test_backward_through_results(pool):
    x = leaf()
    out = pool.starmap(times, [(x, 2), (x, 3)])  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_imap(pool):
    assert list(pool.imap(number, (leaf() for _ in range(3)))) == [3.0] * 3  # -> GG101


def test_gradients_left_in_a_pool(pool):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pool.starmap(backward, [(model, torch.ones(2, 3))] * 2)
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_gradients_left_in_a_process():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    process = FORK.Process(target=backward, args=(model, torch.ones(2, 3)))
    process.start()
    process.join()
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_one_generator_for_all(pool):
    rng = np.random.default_rng(0)
    first, second = pool.map(drawn, [rng, rng], chunksize=1)  # -> GG305
    assert first == second


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_in_workers(pool):
    with pytest.raises((AssertionError, RuntimeError)):
        pool.map(on_gpu, [1, 2])  # -> GG201


def test_executor():
    with multiprocess.pool.Pool(1, context=FORK) as pool:
        assert pool.apply_async(number, (leaf(),)).get() == 3.0  # -> GG101


def test_pathos():
    pools = pytest.importorskip("pathos.multiprocessing", reason="pathos is not installed")
    workers = pools.ProcessPool(1)
    x = leaf() * 2
    (out,) = workers.map(times, [x])  # -> GG101 GG102
    workers.close()
    workers.join()
    workers.clear()
    assert out.grad_fn is None


def test_pathos_amap():
    pools = pytest.importorskip("pathos.multiprocessing", reason="pathos is not installed")
    workers = pools.ProcessPool(1)
    assert workers.amap(number, [leaf()]).get() == [3.0]  # -> GG101
    workers.close()
    workers.join()
    workers.clear()


def rows_of(datasets):
    return datasets.Dataset.from_dict({"a": [1.0, 2.0, 3.0, 4.0]})


def test_dataset_map_captures():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    weight = leaf() * 2
    out = rows_of(datasets).map(  # -> GG101
        lambda row: {"b": float((weight * row["a"]).detach().sum())}, num_proc=2
    )
    assert list(out["b"]) == [6.0, 12.0, 18.0, 24.0]


RANDOM = random.Random(0)


def draw(row, scale=1):
    return {"b": scale * RANDOM.random()}


def test_dataset_map_draws():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    out = rows_of(datasets).map(draw, num_proc=2, fn_kwargs={"scale": 2})  # -> GG305
    assert list(out["b"])[:2] == list(out["b"])[2:]


def keep(row):
    return RANDOM.random() < 0.5


def test_dataset_filter_draws():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    out = rows_of(datasets).filter(keep, num_proc=2)  # -> GG305
    kept = list(out["a"])
    assert kept[: len(kept) // 2] == [one - 2 for one in kept[len(kept) // 2 :]]


# --- nothing to report -----------------------------------------------------------------------


def test_numpy(pool):
    assert pool.map(np.sum, [np.ones(3), np.zeros(3)]) == [3.0, 0.0]


def test_detached(pool):
    x = leaf()
    out = pool.starmap(times, [(x.detach(), 2), (x.detach(), 3)])
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [5.0] * 3


def test_module(pool):
    model = nn.Linear(3, 1)

    def predict(rows):
        with torch.no_grad():
            return model(rows).sum().item()

    assert len(pool.map(predict, [torch.ones(2, 3), torch.zeros(1, 3)])) == 2


def test_gradients_returned(pool):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = pool.starmap(gradients, [(model, torch.ones(2, 3))] * 2)
    for parameter, *parts in zip(model.parameters(), *results, strict=True):
        parameter.grad = sum(parts)
    optimizer.step()


def test_parameters_returned(pool):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.load_state_dict(pool.apply(train, (model, torch.ones(2, 3))))
    optimizer.step()


def put_gradients(queue, model, rows):
    queue.put([one.numpy() for one in gradients(model, rows)])


def test_gradients_in_a_queue():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=put_gradients, args=(queue, model, torch.ones(2, 3)))
    process.start()
    for parameter, gradient in zip(model.parameters(), queue.get(), strict=True):
        parameter.grad = torch.from_numpy(gradient)
    process.join()
    optimizer.step()


def test_generators_of_their_own(pool):
    first, second = pool.map(drawn_from, np.random.SeedSequence(0).spawn(2), chunksize=1)
    assert first != second


INHERITED = leaf()


def from_global(k):
    return number(INHERITED) * k


def test_inherited_by_fork():
    process = FORK.Process(target=from_global, args=(2,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_threads():
    x = leaf()
    with multiprocess.pool.ThreadPool(2) as pool:
        sum(pool.map(times, [x, x])).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


def fail(x):
    raise KeyError(f"no such key: {x}")


def test_error_in_a_worker(pool):
    with pytest.raises(KeyError) as caught:
        pool.apply(fail, (1,))
    assert "in fail" in str(caught.value.__cause__)
    assert "gradguard" not in str(caught.value.__cause__)


def test_types_of_what_is_returned(pool):
    assert type(pool.apply_async(abs, (-1,))) is multiprocess.pool.AsyncResult
    assert pool.map(os.path.basename, ["a/b"]) == ["b"]


def test_pathos_numbers():
    pools = pytest.importorskip("pathos.multiprocessing", reason="pathos is not installed")
    workers = pools.ProcessPool(1)
    assert workers.map(lambda a, b: a + b, [1, 2], [3, 4]) == [4, 6]
    workers.close()
    workers.join()
    workers.clear()


def test_dataset_map():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    out = rows_of(datasets).map(lambda row: {"b": row["a"] * 2}, num_proc=2)
    assert list(out.filter(lambda row: row["b"] > 2, num_proc=2)["b"]) == [4.0, 6.0, 8.0]


def test_dataset_map_with_a_frozen_encoder():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    encoder = nn.Linear(1, 1)

    def encode(row):
        with torch.no_grad():
            return {"b": encoder(torch.tensor([row["a"]])).tolist()}

    assert len(rows_of(datasets).map(encode, num_proc=2)["b"]) == 4


def test_dataset_map_in_one_process():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    weight = leaf() * 2
    out = rows_of(datasets).map(lambda row: {"b": float((weight * row["a"]).detach().sum())})
    assert list(out["b"]) == [6.0, 12.0, 18.0, 24.0]


def seed_and_draw(row, index):
    RANDOM.seed(index)
    return draw(row)


def test_dataset_map_seeds_each_row():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    out = rows_of(datasets).map(seed_and_draw, with_indices=True, num_proc=2)
    assert len(set(out["b"])) == 4


def test_dataset_map_draws_in_one_process():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    assert len(set(rows_of(datasets).map(draw)["b"])) == 4
