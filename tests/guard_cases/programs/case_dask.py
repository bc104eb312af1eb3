"""dask: joblib's backend, `Client.submit` and `map`, `dask.delayed`; in processes and in threads.

Threads of dask's get copies, too, and what they return keeps its graph: over those copies.
"""

import threading

import dask
import numpy as np
import pytest
import torch
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_backend
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
from torch import nn

EXPECT = {
    "test_no_grad_is_lost_in_threads": {"GG301"},
}

DETAILS = {
    "test_scattered": {"GG101": {"object": "args[0]['w']", "backend": "dask"}},
    "test_joblib": {
        "GG101": {
            "backend": "dask",
            "direction": "argument",
            "object": "args[0]",
            "shape": [3],
        },
        "GG102": {"backend": "dask", "direction": "result", "object": "result", "shape": [3]},
        "GG103": {"backend": "dask", "direction": "result"},
    },
    "test_joblib_keyword": {"GG101": {"object": "kwargs['w']"}},
    "test_submit": {"GG101": {"object": "args[0]", "backend": "dask"}},
    "test_threads_of_joblib": {"GG103": {"backend": "dask", "direction": "result"}},
}

SHARED = torch.ones(3, requires_grad=True)


class Estimator:
    def fit(self, rows):
        self.model_ = nn.Linear(3, 1)
        self.loss_ = self.model_(rows).sum()
        return self


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k=2):
    return x * k


def in_containers(x):
    return {"all": [x * 2, (x * 3,)], "k": 1}


def number(x, w=None):
    return float((x if w is None else w).detach().sum())


def number_in(nested):
    return number(nested["a"][0][1])


def own_leaf(k):
    return torch.ones(3, requires_grad=True) * k


def from_global(k):
    return SHARED * k


def left_behind(model):
    model(torch.ones(2, 3)).sum().backward()


def gradients(model):
    return torch.autograd.grad(model(torch.ones(2, 3)).sum(), list(model.parameters()))


def forward(model):
    with torch.no_grad():
        return float(model(torch.ones(2, 3)).sum())


def train(seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model


def fitted(k):
    return Estimator().fit(torch.ones(k, 3))


def fail(x):
    raise KeyError(f"no such key: {x}")


def inner(k):
    return sum(Parallel(n_jobs=2)(delayed(abs)(-j) for j in range(k)))


async def later(x):
    return x + 1


def on_dask(function, *tasks):
    with parallel_backend("dask"):
        return Parallel()(delayed(function)(*task) for task in tasks)


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with Client(processes=True, **options) as client:
        yield client


@pytest.fixture
def processes(cluster):
    with cluster.as_current():
        yield cluster


@pytest.fixture(scope="module")
def local():
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with Client(processes=False, set_as_default=False, **options) as client:
        yield client


@pytest.fixture
def threads(local):
    with local.as_current():
        yield local


def test_joblib(processes):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))  # -> GG101:warning GG102:warning
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_joblib_history(processes):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel(2)(delayed(times)(x.clone(), k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_joblib_keyword(processes):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel()(delayed(number)(k, w=x) for k in (1, 2))  # -> GG101
    assert out == [3.0, 3.0]


def test_joblib_nested(processes):
    nested = {"a": [(1, leaf() * 2)]}
    with parallel_backend("dask"):
        assert Parallel()(delayed(number_in)(nested) for _ in (1, 2)) == [6.0, 6.0]  # -> GG101


def test_joblib_capture(processes):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel()(delayed(lambda k: number(x) * k)(k) for k in (1, 2))  # -> GG101
    assert out == [3.0, 6.0]


def test_joblib_only_the_last(processes):
    items = [torch.ones(3)] * 10 + [leaf()]
    with parallel_backend("dask"):
        assert Parallel()(delayed(number)(item) for item in items) == [3.0] * 11  # -> GG101


def test_joblib_containers(processes):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel()(delayed(in_containers)(x) for _ in (1, 2))  # -> GG101 GG102
    out[1]["all"][1][0].sum().backward()  # -> GG103:error
    assert x.grad is None


def test_joblib_module(processes):
    model = nn.Linear(3, 1)
    with parallel_backend("dask"):
        out = Parallel()(delayed(model)(torch.ones(3)) for _ in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:error
    assert model.weight.grad is None


def test_joblib_own_leaf(processes):
    with parallel_backend("dask"):
        out = Parallel()(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:warning
    assert out[0].grad is not None


def test_joblib_large(processes):
    x = torch.ones(5_000, requires_grad=True)
    with parallel_backend("dask"):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_joblib_gradients_left(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    on_dask(left_behind, (model,), (model,))
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_joblib_never_backward(processes):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (sum(t.detach() for t in out) * x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def sample(rng, size=2):
    return rng.normal(size=size).tolist()


def test_one_generator_for_all(processes):
    rng = np.random.default_rng(0)
    futures = [processes.submit(sample, rng, size) for size in (2, 3)]  # -> GG305
    first, second = processes.gather(futures)
    assert first == second[:2]


def test_one_generator_by_joblib(processes):
    rng = np.random.default_rng(0)
    with parallel_backend("dask"):
        first, second = Parallel()(delayed(sample)(rng) for _ in range(2))  # -> GG305
    assert first == second


def test_threads_one_generator(threads):
    rng = np.random.default_rng(0)
    futures = [threads.submit(sample, rng, size) for size in (2, 3)]  # -> GG305
    first, second = threads.gather(futures)
    assert first == second[:2]


def test_generators_of_their_own(processes):
    first, second = processes.gather(processes.map(sample, np.random.default_rng(0).spawn(2)))
    assert first != second


def test_submit(processes):
    x = leaf()
    out = processes.submit(times, x).result()  # -> GG101 GG102
    out.sum().backward()  # -> GG103:error
    assert x.grad is None


def test_submit_keyword(processes):
    assert processes.submit(number, 1, w=leaf()).result() == 3.0  # -> GG101


def test_map(processes):
    x = leaf()
    out = processes.gather(processes.map(times, [x, x.clone()]))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_delayed(processes):
    x = leaf()
    tasks = [dask.delayed(times)(x, k) for k in (1, 2)]
    out = dask.compute(*tasks)  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_persisted(processes):
    x = leaf()
    task = dask.delayed(times)(x).persist()  # -> GG101 GG102
    task.compute().sum().backward()  # -> GG103:error
    assert x.grad is None


def test_history_between_workers(processes):
    x = leaf()
    middle = processes.submit(times, x)  # -> GG101
    assert processes.submit(number, middle).result() == 6.0


def test_submit_gradients_left(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    processes.submit(left_behind, model).result()
    optimizer.step()  # -> GG106:error
    assert model.weight.grad is None


def test_threads_of_joblib(threads):
    x = leaf()
    with parallel_backend("dask"):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))
    assert out[0].grad_fn is not None
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_threads_of_submit(threads):
    x = leaf()
    out = threads.submit(times, x).result()
    out.sum().backward()  # -> GG103:error
    assert x.grad is None


def test_threads_of_delayed(threads):
    x = leaf()
    out = dask.delayed(times)(x).compute()
    out.sum().backward()  # -> GG103:error
    assert x.grad is None


def test_threads_module(threads):
    model = nn.Linear(3, 1)
    out = on_dask(model, (torch.ones(3),), (torch.ones(3),))
    sum(out).sum().backward()  # -> GG103:warning
    assert model.weight.grad is None


# --- nothing to report ---------------------------------------------------------------------


def test_detached(processes):
    x = leaf()
    out = on_dask(times, (x.detach(), 1), (x.detach(), 2))
    out += processes.gather(processes.map(times, [x.detach()] * 2))
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [7.0] * 3


def test_numbers(processes):
    assert on_dask(abs, *((-k,) for k in range(50))) == list(range(50))
    assert processes.gather(processes.map(abs, range(-3, 0))) == [3, 2, 1]


def test_numpy(processes):
    rows = np.arange(6.0).reshape(2, 3)
    assert on_dask(np.sum, (rows[0],), (rows[1],)) == [3.0, 12.0]


def test_module_shipped(processes):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    out = [*on_dask(forward, (model,), (model,)), processes.submit(forward, model).result()]
    assert out == [forward(model)] * 3


def test_trained_models(processes):
    for model in on_dask(train, (1,), (2,)):
        model(torch.ones(2, 3)).sum().backward()
        assert model.weight.grad is not None


def test_gradients_returned(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for p, gradient in zip(
        model.parameters(), processes.submit(gradients, model).result(), strict=True
    ):
        p.grad = gradient
    optimizer.step()


def test_error(processes):
    with pytest.raises(KeyError) as caught:
        on_dask(fail, (1,), (2,))
    assert "no such key" in caught.value.args[0]
    with pytest.raises(KeyError):
        processes.submit(fail, 1).result()
    assert on_dask(abs, (-1,)) == [1]


def test_scikit_learn(processes):
    rows, labels = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2
    forest = RandomForestClassifier(n_estimators=4, random_state=0)
    with parallel_backend("dask"):
        forest.fit(rows, labels)
        assert len(cross_val_score(forest, rows, labels, cv=2)) == 2


def test_unpicklable_by_submit(processes):
    with pytest.raises(TypeError, match="Could not serialize"):
        processes.submit(repr, threading.Lock())


def test_coroutine(processes):
    assert processes.submit(later, 1).result() == 2


def test_same_key_for_a_pure_call(processes):
    first, second = processes.submit(number, torch.ones(3)), processes.submit(abs, -7)
    again = processes.submit(abs, -7)
    assert second.key == again.key
    assert second.key.startswith("abs-")
    assert first.result() == 3.0
    assert [f.result() for f in processes.map(abs, [-1, -2], key="mine")] == [1, 2]


def test_large_array(processes):
    rows = np.ones(100_000)
    assert on_dask(np.sum, (rows,), (rows,)) == [1e5, 1e5]


def test_nested_parallel(processes):
    assert on_dask(inner, (3,), (4,)) == [3, 6]


def test_estimator_with_loss(processes):
    assert all(estimator.loss_.is_leaf for estimator in on_dask(fitted, (1,), (2,)))


def test_futures_as_arguments(processes):
    far = processes.scatter(torch.ones(3))
    assert on_dask(number, (far,)) == [3.0]
    total = processes.submit(sum, processes.map(abs, [-1, -2]))
    assert total.result() == 3


def test_scattered(processes):
    far = processes.scatter({"w": leaf()})  # -> GG101:warning
    assert processes.submit(number, far["w"]).result() == 3.0


def test_scattered_gradients_left(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    far = processes.scatter(model, broadcast=True)
    processes.gather(processes.map(left_behind, [far, far], pure=False))
    optimizer.step()  # -> GG106:error


def test_scattered_gradients_returned(processes):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    far = processes.scatter(model, hash=False)
    found = processes.submit(gradients, far).result()
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        parameter.grad = gradient
    optimizer.step()


def test_scattered_module(processes):
    far = processes.scatter([nn.Linear(3, 1), torch.ones(3)])
    assert isinstance(processes.submit(forward, far[0]).result(), float)


def test_threads_scattered(threads):
    assert threads.submit(number, threads.scatter(leaf())).result() == 3.0


def squares(tensor):
    return (tensor * tensor).sum()


def squares_only(tensor):
    with torch.no_grad():
        return squares(tensor)


def in_threads_without_gradients(task):
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        return dask.compute(  # -> GG301:warning?
            *[dask.delayed(task)(x * k) for k in (1.0, 2.0)], scheduler="threads"
        )


def test_no_grad_in_the_tasks():
    assert not any(part.requires_grad for part in in_threads_without_gradients(squares_only))


def weighted(tensor):
    return squares(tensor * torch.ones(2, requires_grad=True))


def test_no_grad_is_lost_in_threads():
    assert all(part.requires_grad for part in in_threads_without_gradients(weighted))


def test_scheduler_of_threads():
    x = leaf()
    out = dask.compute(*[dask.delayed(times)(x, k) for k in (1, 2)], scheduler="threads")
    sum(out).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_backend_by_argument():
    with pytest.raises((ValueError, TypeError)):
        Parallel(2, backend="dask")(delayed(abs)(k) for k in (1, 2))


def test_threads_detached(threads):
    x = leaf()
    out = on_dask(times, (x.detach(), 1), (x.detach(), 2))
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_threads_own_leaf(threads):
    (out,) = on_dask(own_leaf, (2,))
    out.sum().backward()


def test_threads_shared_global(threads):
    """A function that is importable finds the parent's own tensor: nothing was copied."""
    out = threads.submit(from_global, 2, pure=False).result()
    if out.grad_fn is not None:
        out.sum().backward()


def test_threads_numbers(threads):
    assert on_dask(abs, (-1,), (-2,)) == [1, 2]
    assert threads.gather(threads.map(abs, [-1, -2])) == [1, 2]


def test_threads_lock(threads):
    assert threads.submit(threading.Lock).result() is not None


def test_threads_models(threads):
    for model in on_dask(train, (1,), (2,)):
        model(torch.ones(2, 3)).sum().backward()
        assert model.weight.grad is not None


def test_threads_never_backward(threads):
    x = leaf()
    out = threads.submit(times, x).result()
    (out.detach() * x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def fit(model, path=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(torch.ones(4, 3)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    if path is not None:
        torch.save(model.state_dict(), path)
    return loss.item()


def test_trained_copy(processes):
    model = torch.nn.Linear(3, 1)
    processes.submit(fit, model).result()  # -> GG114
    model.eval()


def test_trained_copy_saved(processes, tmp_path):
    model = torch.nn.Linear(3, 1)
    processes.submit(fit, model, str(tmp_path / "model.pt")).result()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    model.eval()


def calibrate(model):
    with torch.no_grad():
        return model(torch.ones(4, 3)).mean().item()


def test_statistics_left(processes):
    model = torch.nn.BatchNorm1d(3)
    processes.submit(calibrate, model).result()  # -> GG111
    model.eval()
