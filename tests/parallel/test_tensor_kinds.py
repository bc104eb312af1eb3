"""Tensors of other layouts, precisions and modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import tasks  # noqa: E402
from comparison import equal_in_workers, leaves  # noqa: E402
from torch import nn  # noqa: E402

from pytest_gradguard.parallel import Parallel, delayed  # noqa: E402


def _sparse(kind: str) -> Callable[[Any], Any]:
    def program(parallel: Any) -> Any:
        torch.manual_seed(0)
        net, (a, b) = tasks.Graph(), leaves((3, 3), (3, 2))
        given: dict[str, Any] = {
            "buffer": (tasks.forward, net, torch.ones(3, 3)),
            "argument": (tasks.product, torch.eye(3).to_sparse(), b),
            "leaf": (tasks.product, a.detach().to_sparse().requires_grad_(), b),
            "upstream": (tasks.product, a.to_sparse(), b),
            "gradient": (tasks.forward, nn.EmbeddingBag(3, 2, sparse=True), torch.eye(3).long()),
        }
        function, one, other = given[kind]
        outs = parallel()(delayed(function)(one, other) for _ in range(2))
        sum(out.sum() for out in outs).backward()
        grads = [a.grad, b.grad, net.layer.weight.grad, getattr(one, "grad", None)]
        return [one if one is None else one.to_dense() for one in grads]

    return program


@pytest.mark.parametrize("kind", ["buffer", "argument", "leaf", "upstream", "gradient"])
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_sparse_tensors(kind: str) -> None:
    equal_in_workers(_sparse(kind))


def test_one_element_whose_stride_is_zero() -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves((3,))
        given = (x.sum().expand(1), torch.ones(()).expand(1))
        outs = parallel()([delayed(tasks.expanded)(*given) for _ in range(2)])
        sum(out.sum().expand(1) for out in outs).backward()
        return [x.grad, *outs]

    equal_in_workers(program)


def test_tensors_of_the_inference_mode() -> None:
    (w,) = leaves((3, 1))
    with torch.inference_mode():
        batch, net = torch.ones(2, 3), nn.Linear(3, 1)
        for given in (batch, net.weight):
            (out,) = Parallel(n_jobs=2)([delayed(tasks.product)(given, w)])
            assert out.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        Parallel(n_jobs=2)([delayed(tasks.product)(batch, w)])


@pytest.mark.parametrize("cache", [False, True])
def test_autocast_and_its_cache(cache: bool) -> None:
    """One process adds up the gradients of a cached weight in the lower precision."""

    def program(parallel: Any) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            outs = parallel()(delayed(tasks.half)(net, x) for x in torch.randn(2, 4, 3))
        sum(outs).backward()
        return [one.grad for one in net.parameters()]

    if not cache:
        equal_in_workers(program)
        return
    for one, other in zip(*(program(partial(Parallel, n_jobs=n)) for n in (1, 2)), strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)
