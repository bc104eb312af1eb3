"""Which backend runs: only process workers copy, so only they lose a gradient."""

import joblib
import pytest
import torch
from joblib import Parallel, delayed, parallel_backend
from torch import nn

EXPECT = {
    "test_default": {"GG101", "GG102", "GG103"},
    "test_explicit_loky": {"GG101", "GG102", "GG103"},
    "test_prefer_processes": {"GG101", "GG102", "GG103"},
    "test_all_cores": {"GG101", "GG102", "GG103"},
    "test_n_jobs_from_a_variable": {"GG101", "GG102", "GG103"},
    "test_config_loky": {"GG101", "GG102", "GG103"},
    "test_config_gives_n_jobs": {"GG101", "GG102", "GG103"},
    "test_parallel_backend_context": {"GG101", "GG102", "GG103"},
    "test_config_outranks_prefer_threads": {"GG101", "GG102", "GG103"},
    "test_argument_outranks_config": {"GG101", "GG102", "GG103"},
    "test_backend_object": {"GG101", "GG102", "GG103"},
    "test_one_task": {"GG101", "GG102", "GG103"},
    "test_more_jobs_than_tasks": {"GG101", "GG102", "GG103"},
    "test_joblib_dotted": {"GG101", "GG102", "GG103"},
    "test_stored_parallel": {"GG101", "GG102", "GG103"},
    "test_subclass_of_parallel": {"GG101", "GG102", "GG103"},
    "test_in_process[one]": set(),
    "test_in_process[none]": set(),
    "test_in_process[missing]": set(),
    "test_in_process[sequential]": set(),
    "test_in_process[threading]": set(),
    "test_in_process[prefer-threads]": set(),
    "test_in_process[sharedmem]": set(),
    "test_in_process[loky-one-job]": set(),
}

DETAILS = {
    "test_default": {
        "GG101": {"backend": "loky", "direction": "argument", "object": "args[0]", "shape": [3]},
        "GG102": {"backend": "loky", "direction": "result", "shape": [3]},
        "GG103": {"backend": "loky", "direction": "result", "shape": [3]},
    },
    "test_config_loky": {"GG101": {"backend": "loky"}},
}

parallel_config = getattr(joblib, "parallel_config", parallel_backend)


def add(t, k):
    return t + k


def detached_sum(t):
    return float(t.detach().sum())


def check_lost(x, out):
    """The parent's backward runs without an error, and `x` gets nothing."""
    assert [t.is_leaf for t in out] == [True] * len(out)
    torch.stack(list(out)).sum().backward()  # -> GG103:error
    assert x.grad is None
    assert out[0].grad is not None


def check_kept(x, out):
    torch.stack(list(out)).sum().backward()
    assert x.grad.tolist() == [float(len(out))] * 3


def leaf():
    return torch.ones(3, requires_grad=True)


def test_default():
    x = leaf()
    check_lost(x, Parallel(n_jobs=2)(delayed(add)(x, k) for k in range(2)))  # -> GG101 GG102


def test_explicit_loky():
    x = leaf()
    out = Parallel(n_jobs=2, backend="loky")(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


def test_prefer_processes():
    x = leaf()
    out = Parallel(2, prefer="processes")(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


@pytest.mark.skipif(joblib.cpu_count() < 2, reason="with one core, -1 means one job")
def test_all_cores():
    x = leaf()
    check_lost(x, Parallel(n_jobs=-1)(delayed(add)(x, k) for k in range(2)))  # -> GG101 GG102


def test_n_jobs_from_a_variable():
    x = leaf()
    settings = {"n_jobs": 1 + 1, "verbose": 0}
    check_lost(x, Parallel(**settings)(delayed(add)(x, k) for k in range(2)))  # -> GG101 GG102


def test_config_loky():
    x = leaf()
    with parallel_config(backend="loky", n_jobs=2):
        out = Parallel()(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


@pytest.mark.skipif(parallel_config is parallel_backend, reason="joblib has that since 1.3")
def test_config_gives_n_jobs():
    x = leaf()
    with parallel_config(n_jobs=2):
        out = Parallel(n_jobs=None)(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


def test_parallel_backend_context():
    x = leaf()
    with parallel_backend("loky", n_jobs=2):
        out = Parallel()(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


def test_config_outranks_prefer_threads():
    x = leaf()
    with parallel_config(backend="loky", n_jobs=2):
        out = Parallel(prefer="threads")(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


def test_argument_outranks_config():
    x = leaf()
    with parallel_config(backend="threading", n_jobs=2):
        out = Parallel(2, backend="loky")(delayed(add)(x, k) for k in range(2))  # -> GG101 GG102
    check_lost(x, out)


def test_backend_object():
    x = leaf()
    backend = joblib.parallel.BACKENDS["loky"]()
    out = Parallel(n_jobs=2, backend=backend)(
        delayed(add)(x, k) for k in range(2)
    )  # -> GG101 GG102
    check_lost(x, out)


def test_one_task():
    x = leaf()
    check_lost(x, Parallel(n_jobs=2)([delayed(add)(x, 1)]))  # -> GG101 GG102


def test_more_jobs_than_tasks():
    x = leaf()
    check_lost(x, Parallel(n_jobs=2)(delayed(add)(x, k) for k in range(1)))  # -> GG101 GG102


def test_joblib_dotted():
    x = leaf()
    check_lost(
        x, joblib.Parallel(n_jobs=2)(joblib.delayed(add)(x, k) for k in (0, 1))
    )  # -> GG101 GG102


class Runner:
    def __init__(self):
        self.parallel = Parallel(n_jobs=2)

    def map(self, function, *items):
        return self.parallel(
            delayed(function)(*item) for item in zip(*items, strict=True)
        )  # -> GG101 GG102


def test_stored_parallel():
    x = leaf()
    check_lost(x, Runner().map(add, [x, x], [0, 1]))


class NamedParallel(Parallel):
    def __init__(self, name, **options):
        super().__init__(**options)
        self.name = name


def test_subclass_of_parallel():
    x = leaf()
    check_lost(
        x, NamedParallel("a", n_jobs=2)(delayed(add)(x, k) for k in range(2))
    )  # -> GG101 GG102


# --- nothing to report ---------------------------------------------------------------------

IN_PROCESS = {
    "one": {"n_jobs": 1},
    "none": {"n_jobs": None},
    "missing": {},
    "sequential": {"n_jobs": 2, "backend": "sequential"},
    "threading": {"n_jobs": 2, "backend": "threading"},
    "prefer-threads": {"n_jobs": 2, "prefer": "threads"},
    "sharedmem": {"n_jobs": 2, "require": "sharedmem"},
    "loky-one-job": {"n_jobs": 1, "backend": "loky"},
}


@pytest.mark.parametrize("options", IN_PROCESS.values(), ids=IN_PROCESS)
def test_in_process(options):
    x = leaf()
    check_kept(x, Parallel(**options)(delayed(add)(x * 1, k) for k in range(4)))


def test_config_threading():
    x = leaf()
    with parallel_config(backend="threading", n_jobs=2):
        check_kept(x, Parallel()(delayed(add)(x, k) for k in range(4)))


def test_config_sequential():
    x = leaf()
    with parallel_config(backend="sequential"):
        check_kept(x, Parallel(n_jobs=2)(delayed(add)(x, k) for k in range(4)))


def test_config_threading_outranks_prefer_processes():
    x = leaf()
    with parallel_config(backend="threading"):
        check_kept(x, Parallel(n_jobs=2, prefer="processes")(delayed(add)(x, k) for k in (0, 1)))


def test_sharedmem_under_config_loky():
    x = leaf()
    with parallel_config(backend="loky"):
        check_kept(x, Parallel(n_jobs=2, require="sharedmem")(delayed(add)(x, k) for k in (0, 1)))


def backward(model, rows):
    loss = model(rows).sum()
    loss.backward()
    return loss


def test_threads_train_one_model():
    model = nn.Linear(3, 1)
    rows = torch.ones(3)
    losses = Parallel(n_jobs=2, backend="threading")(
        delayed(backward)(model, rows) for _ in range(2)
    )
    assert model.weight.grad.tolist() == [[2.0, 2.0, 2.0]]
    assert losses[0].grad_fn is not None


def test_threads_over_closure():
    x = leaf()
    y = x * 2
    out = Parallel(n_jobs=2, prefer="threads")(delayed(lambda k: y * k)(k) for k in range(3))
    torch.stack(out).sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_threads_after_processes():
    x = leaf()
    out = Parallel(n_jobs=2)(delayed(detached_sum)(x) for _ in range(2))  # -> GG101
    assert out == [3.0, 3.0]
    check_kept(x, Parallel(n_jobs=2, backend="threading")(delayed(add)(x, k) for k in range(2)))
