"""The multiprocessing backend: processes made by fork, with joblib's own pickling."""

import functools

import pytest
import torch
from joblib import Parallel, delayed, parallel_backend, parallel_config
from torch import nn

DETAILS = {
    "test_leaf": {
        "GG101": {
            "backend": "multiprocessing",
            "direction": "argument",
            "object": "args[0]",
            "shape": [3],
        },
        "GG102": {"backend": "multiprocessing", "direction": "result", "shape": [3]},
        "GG103": {"backend": "multiprocessing", "direction": "result"},
    },
    "test_keyword": {"GG101": {"object": "kwargs['w']", "backend": "multiprocessing"}},
}

SHARED = torch.ones(3, requires_grad=True)
FORK = {"n_jobs": 2, "backend": "multiprocessing"}


class Tagged(torch.Tensor):
    pass


class Task:
    def __init__(self, weight):
        self.state = {"weight": weight}

    def run(self, k):
        return float(self.state["weight"].detach().sum()) * k


class Estimator:
    def fit(self, rows):
        self.model_ = nn.Linear(3, 1)
        self.loss_ = self.model_(rows).sum()
        return self


def leaf():
    return torch.ones(3, requires_grad=True)


def times(x, k):
    return x * k


def number(x, w=None):
    x = x if w is None else w
    return float(x.detach().sum())


def number_in(nested):
    return number(nested["a"][0][1])


def own_leaf(k):
    return torch.ones(3, requires_grad=True) * k


def in_dictionary(x, k):
    return {"k": k, "value": [x * k]}


def scaled(x, k):
    return number(x) * k


def without_grad(x):
    with torch.no_grad():
        return (x * 2).sum()


def train(seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()
    return model


def gradients(model, rows):
    return torch.autograd.grad(model(rows).sum(), list(model.parameters()))


def forward(model, rows):
    with torch.no_grad():
        return float(model(rows).sum())


def from_global(k):
    return number(SHARED) * k


def fitted(k):
    return Estimator().fit(torch.ones(k, 3))


def fail(x):
    raise KeyError(f"no such key: {number(x)}")


def inner(k):
    return sum(Parallel(n_jobs=2, backend="multiprocessing")(delayed(float)(j) for j in range(k)))


def test_leaf():
    x = leaf()
    out = Parallel(n_jobs=2, backend="multiprocessing")(
        delayed(times)(x, k) for k in (1, 2)
    )  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_history():
    x = leaf()
    out = Parallel(**FORK)(delayed(times)(x.clone(), k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_keyword():
    w = leaf()
    out = Parallel(**FORK)(delayed(number)(k, w=w) for k in (1, 2))  # -> GG101
    assert out == [3.0, 3.0]


def test_nested():
    nested = {"a": [(1, leaf() * 2)]}
    assert Parallel(**FORK)(delayed(number_in)(nested) for _ in (1, 2)) == [6.0, 6.0]  # -> GG101


def test_partial():
    work = functools.partial(scaled, leaf())
    assert Parallel(**FORK)(delayed(work)(k) for k in (1, 2)) == [3.0, 6.0]  # -> GG101


def test_bound_method():
    task = Task(leaf())
    assert Parallel(**FORK)(delayed(task.run)(k) for k in (1, 2)) == [3.0, 6.0]  # -> GG101


def test_module_shipped():
    model = nn.Linear(3, 1)
    out = Parallel(**FORK)(delayed(model)(torch.ones(3)) for _ in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:error
    assert model.weight.grad is None


def test_own_leaf():
    out = Parallel(**FORK)(delayed(own_leaf)(k) for k in (1, 2))  # -> GG102
    sum(out).sum().backward()  # -> GG103:warning
    assert out[0].grad is not None


def test_dictionary_result():
    x = leaf()
    out = Parallel(**FORK)(delayed(in_dictionary)(x, k) for k in (1, 2))  # -> GG101 GG102
    assert out[1]["value"][0].tolist() == [2.0] * 3


def test_only_the_last():
    items = [torch.ones(3)] * 30 + [leaf()]
    assert Parallel(**FORK)(delayed(number)(item) for item in items) == [3.0] * 31  # -> GG101


def test_by_config():
    x = leaf()
    with parallel_config(backend="multiprocessing", n_jobs=2):
        out = Parallel()(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_by_parallel_backend():
    x = leaf()
    with parallel_backend("multiprocessing", n_jobs=2):
        out = Parallel(prefer="threads")(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    assert out[1].tolist() == [2.0] * 3


def test_generator():
    x = leaf()
    with pytest.raises(ValueError, match="does not support return_as=generator"):
        Parallel(return_as="generator", **FORK)(delayed(times)(x, k) for k in (1, 2))


def test_context_manager():
    x = leaf()
    with Parallel(**FORK) as parallel:
        assert parallel(delayed(number)(x.detach()) for _ in (1, 2)) == [3.0, 3.0]
        first = parallel(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
        second = parallel(delayed(times)(x, k) for k in (3, 4))  # -> GG101 GG102
    sum(first + second).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_subclass():
    x = torch.ones(3).as_subclass(Tagged).requires_grad_()
    assert Parallel(**FORK)(delayed(number)(x) for _ in (1, 2)) == [3.0, 3.0]  # -> GG101


def test_never_reached_by_a_backward():
    x = leaf()
    out = Parallel(**FORK)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    (sum(t.detach() for t in out) * x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_worker_without_grad():
    x = leaf()
    out = Parallel(**FORK)(delayed(without_grad)(x) for _ in (1, 2))  # -> GG101
    assert [t.item() for t in out] == [6.0, 6.0]


# --- nothing to report ---------------------------------------------------------------------


def test_detached():
    x = leaf()
    out = Parallel(**FORK)(delayed(times)(x.detach(), k) for k in (1, 2))
    (sum(out) * x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_module():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    rows = torch.ones(2, 3)
    out = Parallel(**FORK)(delayed(forward)(model, rows) for _ in (1, 2))
    assert out == [forward(model, rows)] * 2


def test_trained_models():
    for model in Parallel(**FORK)(delayed(train)(k) for k in (1, 2)):
        model(torch.ones(2, 3)).sum().backward()
        assert model.weight.grad is not None


def test_gradients_returned():
    model = nn.Linear(3, 1)
    out = Parallel(**FORK)(delayed(gradients)(model, torch.ones(k, 3)) for k in (1, 2))
    for p, *parts in zip(model.parameters(), *out, strict=True):
        p.grad = sum(parts)
    assert model.weight.grad.tolist() == [[3.0, 3.0, 3.0]]


def test_numbers():
    assert Parallel(**FORK)(delayed(abs)(-k) for k in range(50)) == list(range(50))


def test_global_inherited_by_fork():
    assert Parallel(**FORK)(delayed(from_global)(k) for k in (1, 2)) == [3.0, 6.0]


def test_estimator_with_loss():
    out = Parallel(**FORK)(delayed(fitted)(k) for k in (1, 2))
    assert all(estimator.loss_.is_leaf for estimator in out)


def test_lambda_cannot_be_pickled():
    with pytest.raises(Exception, match=r"Can't pickle|Can't get local"):
        Parallel(**FORK)(delayed(lambda k: k)(k) for k in (1, 2))


def test_error_in_a_worker():
    with pytest.raises(KeyError) as caught:
        Parallel(**FORK)(delayed(fail)(torch.ones(1)) for _ in (1,))
    assert caught.value.args == ("no such key: 1.0",)


def test_one_job():
    x = leaf()
    out = Parallel(n_jobs=1, backend="multiprocessing")(delayed(times)(x, k) for k in (1, 2))
    sum(out).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_nested_in_daemons():
    assert Parallel(**FORK)(delayed(inner)(k) for k in (2, 3)) == [1.0, 3.0]
