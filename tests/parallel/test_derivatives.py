"""Derivatives of higher order, and many at once."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import tasks  # noqa: E402
from comparison import equal_in_workers, leaves  # noqa: E402
from torch import nn  # noqa: E402

from pytest_gradguard.parallel import Parallel, delayed  # noqa: E402


def test_derivatives_inside_the_task() -> None:
    def program(parallel: Any) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        points = torch.rand(3, 10, 1)
        for _ in range(4):
            optimizer.zero_grad()
            losses = parallel()(delayed(tasks.derivative)(net, x.clone()) for x in points)
            torch.stack(losses).mean().backward()
            optimizer.step()
        return [*net.parameters(), *[p.grad for p in net.parameters()]]

    equal_in_workers(program)


def _gradients_of_gradients(parallel: Any) -> Any:
    x, y = leaves(3, 3)
    outs = parallel()(delayed(tasks.polynomial)(x * y, k) for k in range(2))
    (grad,) = torch.autograd.grad((outs[0] * outs[1]).sum() + (x**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.pow(2).sum(), y, create_graph=True)
    second.exp().sum().backward()
    return [grad, second, x.grad, y.grad]


def _penalty(parallel: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    data = torch.randn(2, 5, 3)
    losses = parallel()(delayed(tasks.forward)(net, x) for x in data)
    weights = list(net.parameters())
    grads = torch.autograd.grad(torch.cat(losses).pow(2).mean(), weights, create_graph=True)
    sum(one.pow(2).sum() for one in grads).backward(inputs=weights[:1])
    return [weights[0].grad, weights[2].grad, *grads]


def _meta_learning(parallel: Any) -> Any:
    (w,) = leaves(3)
    inner = sum(parallel()(delayed(tasks.polynomial)(w, k) for k in range(2))).sum()
    (grad,) = torch.autograd.grad(inner, w, create_graph=True)
    outer = parallel()(delayed(tasks.polynomial)(w - 0.1 * grad, k) for k in range(2))
    (outer[0] * outer[1]).sum().backward()
    return [w.grad]


def _functional(name: str) -> Any:
    def program(parallel: Any) -> Any:
        (x,) = leaves(3)

        def total(x: Any) -> Any:
            outs = parallel()(delayed(tasks.polynomial)(x, k) for k in range(2))
            return (outs[0] * outs[1]).sum()

        given = (x.detach(), torch.ones(3)) if name in {"hvp", "vhp"} else (x.detach(),)
        found = getattr(torch.autograd.functional, name)(total, *given)
        return [found[1] if isinstance(found, tuple) else found]

    return program


DOUBLE = {
    "nested": _gradients_of_gradients,
    "penalty": _penalty,
    "maml": _meta_learning,
    **{name: _functional(name) for name in ("hessian", "hvp", "vhp")},
}


@pytest.mark.parametrize("name", DOUBLE)
def test_derivatives_of_the_gradients(name: str) -> None:
    equal_in_workers(DOUBLE[name], rounded=True)


@pytest.mark.parametrize("options", [{"backend": "multiprocessing"}, {"return_as": "generator"}])
def test_derivatives_of_the_gradients_everywhere(options: Any) -> None:
    def program(parallel: Any) -> Any:
        return _gradients_of_gradients(lambda: lambda tasks: list(parallel()(tasks)))

    equal_in_workers(program, rounded=True, **options)


def test_gradgradcheck() -> None:
    (x,) = leaves(2, dtype=torch.double)

    def together(x: Any) -> Any:
        return tuple(Parallel(n_jobs=2)(delayed(tasks.polynomial)(x, k) for k in (1.0, 2.0)))

    assert torch.autograd.gradgradcheck(together, (x,))


@pytest.mark.parametrize("create_graph", [False, True])
def test_many_gradients_at_once(create_graph: bool) -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(3)

        def stacked(x: Any) -> Any:
            outs = parallel()(delayed(tasks.polynomial)(x, k) for k in range(2))
            return (outs[0] * outs[1]).cos()

        options = {"vectorize": True, "create_graph": create_graph}
        found = torch.autograd.functional.jacobian(stacked, x, **options)
        if create_graph:
            found.exp().sum().backward()
        return [found, x.grad]

    equal_in_workers(program, rounded=create_graph)


def test_gradcheck() -> None:
    (x, y) = leaves((2, 2), 2, dtype=torch.double)

    def together(x: Any, y: Any) -> Any:
        outs = Parallel(n_jobs=2)(delayed(tasks.polynomial)(x @ y, k) for k in (1.0, 2.0))
        return outs[0] * outs[1], outs[1].sum()

    assert torch.autograd.gradcheck(together, (x, y))
