"""dask's own processes: `compute(scheduler="processes")`, and bags, which use them by default."""

import numpy as np
import pytest
import torch
from torch import nn

dask = pytest.importorskip("dask")
bag = pytest.importorskip("dask.bag")

EXPECT = {
    "test_loss": {"GG101", "GG102", "GG103"},
    "test_one_generator": {"GG305"},
}


def in_processes(*nodes):
    return dask.compute(*nodes, scheduler="processes", num_workers=1)  # -> GG101? GG102? GG305?


def product(w, x):
    return (w * x).sum()


def test_loss():
    w = torch.ones(3, requires_grad=True)
    first, second = in_processes(
        *[dask.delayed(product)(w, torch.full((3,), scale)) for scale in (1.0, 2.0)]
    )
    (first + second).backward()  # -> GG103:error
    assert w.grad is None


def test_capture_of_a_bag():
    w = torch.ones((), requires_grad=True)
    numbers = bag.from_sequence(range(4), npartitions=2).map(lambda number: float(w) * number)
    assert numbers.sum().compute(num_workers=1) == 6.0  # -> GG101


def drawn(rng):
    return rng.normal()


def test_one_generator():
    rng = np.random.default_rng(0)
    first, second = in_processes(*[dask.delayed(drawn)(rng) for _ in range(2)])
    assert first == second


def predicted(net, x):
    with torch.no_grad():
        return net(x)


def test_inference():
    net = nn.Linear(3, 1)
    (result,) = in_processes(dask.delayed(predicted)(net, torch.ones(3)))
    assert not result.requires_grad


def refuse(number):
    raise ValueError(f"not {number}")


def test_what_tasks_raise():
    with pytest.raises(ValueError, match="not 3"):
        in_processes(dask.delayed(refuse)(3))


def doubled(number):
    return number * 2


def test_graph_of_numbers():
    first = dask.delayed(doubled)(2)
    assert in_processes(dask.delayed(sum)([first, dask.delayed(doubled)(first)])) == (12,)
