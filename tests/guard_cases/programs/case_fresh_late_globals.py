"""Globals that this process fills after the import, and that its workers find empty."""

import pytest
import torch
from joblib import Parallel, delayed
from torch import nn

DETAILS = {"test_loaded_by_a_function": {"GG109": {"in_worker": "None"}}}

mean = None
model = None
lazy = None
given = None
last = None
rate = None
gone = None


def load():
    global mean, model, given, lazy, last, rate
    mean = torch.tensor(5.0)
    model = nn.Linear(2, 1)
    given = torch.tensor(2.0)
    last = torch.tensor(7.0)
    rate = 0.5


def centred(x):
    return float(x if mean is None else x - mean)


def test_loaded_by_a_function():
    load()
    results = Parallel(2)(delayed(centred)(torch.tensor(1.0)) for _ in range(2))  # -> GG109
    assert results == [1.0, 1.0]


def applied(x):
    with torch.no_grad():
        return float(model(x))


def test_worker_fails():
    load()
    with pytest.raises(TypeError, match="NoneType"):
        Parallel(2)(delayed(applied)(torch.ones(2)) for _ in range(2))  # -> GG109


def test_threads():
    load()
    tasks = [delayed(centred)(torch.tensor(1.0)) for _ in range(2)]
    assert Parallel(2, backend="threading")(tasks) == [-4.0, -4.0]


def test_forked():
    load()
    tasks = [delayed(centred)(torch.tensor(1.0)) for _ in range(2)]
    assert Parallel(2, backend="multiprocessing")(tasks) == [-4.0, -4.0]


def the_lazy():
    global lazy
    if lazy is None:
        lazy = torch.tensor(3.0)
    return lazy


def with_lazy(x):
    return float(x * the_lazy())


def test_each_worker_loads_it():
    the_lazy()
    tasks = [delayed(with_lazy)(torch.tensor(2.0)) for _ in range(2)]
    assert Parallel(2)(tasks) == [6.0, 6.0]


def with_given(x, value):
    global given
    given = value
    return float(x * given)


def test_passed_along():
    load()
    tasks = [delayed(with_given)(torch.tensor(2.0), given) for _ in range(2)]
    assert Parallel(2)(tasks) == [4.0, 4.0]


def remembered(x):
    global last
    if last is not None and last.shape != x.shape:
        raise ValueError("all of one shape")
    last = x
    return float(x)


def test_only_the_last_one():
    load()
    Parallel(2)(delayed(remembered)(torch.tensor(2.0)) for _ in range(2))


def rated(x):
    return x if rate is None else x * rate


def test_settings():
    load()
    Parallel(2)(delayed(rated)(2.0) for _ in range(2))  # -> GG109:warning


def with_gone(x):
    return float(x if gone is None else x + gone)


def test_emptied_again():
    global gone
    gone = torch.tensor(1.0)
    gone = None
    assert Parallel(2)(delayed(with_gone)(torch.tensor(2.0)) for _ in range(2)) == [2.0, 2.0]
