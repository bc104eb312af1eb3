"""What `Parallel` refuses, in one line that names it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import tasks  # noqa: E402
from comparison import equal_in_workers, leaves, refused  # noqa: E402
from torch import nn  # noqa: E402

from pytest_gradguard.parallel import Parallel, UnsupportedGradientError, delayed  # noqa: E402


def test_changes_in_place_are_refused() -> None:
    (x,) = leaves(3)
    assert "`in_place` changes its argument `t`" in refused(delayed(tasks.in_place)(x * 1, 2))
    assert "argument `buffer`" in refused(delayed(tasks.scratch)(x, torch.zeros(3)))


@pytest.mark.parametrize("how", ["closure", "default", "module", "list"])
def test_captures_are_refused(how: str) -> None:
    w, x = leaves(3, 3)
    net, several = nn.Linear(3, 3), [w]
    functions: Any = {
        "closure": lambda x: x * w,
        "default": lambda x, w=w: x * w,
        "module": lambda x: net(x),
        "list": lambda x: x * several[0],
    }
    assert "requires grad and is not among its arguments" in refused(delayed(functions[how])(x))
    values = (lambda x: x * w.detach(), lambda x: x * float(net.bias.sum()))
    for out in Parallel(n_jobs=2)(delayed(one)(x) for one in values):
        out.sum().backward()


def test_globals_are_refused() -> None:
    (x,) = leaves(2)
    assert "`reads_global` uses `weight`" in refused(delayed(tasks.reads_global)(x))
    assert "`weight`" in refused(delayed(tasks.reads_global)(1.0))
    Parallel(n_jobs=2)([delayed(tasks.reads_global_values)(x)])[0].sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]


HIDDEN: dict[str, Any] = {
    "call": tasks.Registered(),
    "classmethod": tasks.Registered.of_class,
    "import": tasks.imports_inside,
    "name": tasks.by_its_name,
}


@pytest.mark.parametrize("options", [{}, {"backend": "multiprocessing"}], ids=str)
@pytest.mark.parametrize("how", HIDDEN)
def test_hidden_globals_are_refused(how: str, options: Any) -> None:
    function, (x,) = HIDDEN[how], leaves((1, 3))
    for given in (x, x.detach()):
        message = refused(delayed(function)(given), **options)
        assert "`net.weight`, which requires grad and is not among its" in message
    with torch.no_grad():
        assert Parallel(n_jobs=2, **options)([delayed(function)(x)])[0].shape == (1, 1)


def test_cached_and_replaced_models_are_refused() -> None:
    (x,) = leaves((1, 3))
    assert "`from_a_cache` uses a tensor, which requires" in refused(delayed(tasks.from_a_cache)(x))
    message = refused(delayed(tasks.replaces)(nn.Linear(3, 1), x))
    assert "`replaces` replaces the parameter `module.weight`" in message


@pytest.mark.parametrize("upstream", [False, True])
def test_results_beside_the_model_that_made_them(upstream: bool) -> None:
    x = torch.ones(1, 3, requires_grad=upstream)
    ((made, loss),) = Parallel(n_jobs=2)([delayed(tasks.makes_and_returns)(x)])
    assert torch.allclose(made(x).sum(), loss)
    with pytest.raises(UnsupportedGradientError, match="returns a tensor that it has made"):
        loss.backward()


@pytest.mark.parametrize("how", ["hook", "retain", "retain in the task", "grad", "inputs"])
def test_gradients_of_results_that_others_depend_on(how: str) -> None:
    def program(parallel: Any) -> None:
        (w,) = leaves(3)
        ((hidden, loss),) = parallel()([delayed(tasks.hidden_and_loss)(w, "task" in how)])
        if how == "hook":
            hidden.register_hook(lambda grad: grad * 3)
        if how == "retain":
            hidden.retain_grad()
        if how == "grad":
            torch.autograd.grad(loss, hidden, allow_unused=True)
        loss.backward(inputs=[hidden] if how == "inputs" else None)

    with pytest.raises(UnsupportedGradientError, match="another result of its task depends on"):
        program(partial(Parallel, n_jobs=2))


def test_results_that_others_depend_on_or_not() -> None:
    def program(parallel: Any) -> Any:
        (w,) = leaves(3)
        outs = parallel()(delayed(tasks.hidden_and_loss)(w, False) for _ in range(2))
        more = parallel()(delayed(tasks.several)(w, k) for k in range(2))
        more[0]["a"].register_hook(lambda grad: grad * 3)  # no gradient reaches it
        more[1]["a"].register_hook(lambda grad: grad * 3)
        total = outs[0][1] * outs[1][0].sum() + (more[0]["unused"] * more[1]["a"]).sum()
        of_hidden = torch.autograd.grad(total, outs[1][0], retain_graph=True)
        total.backward()
        return [w.grad, *of_hidden]

    equal_in_workers(program)


def test_transforms_are_refused() -> None:
    def loss(x: Any) -> Any:
        return Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, 2.0)])[0].sum()

    with pytest.raises(UnsupportedGradientError, match=r"torch\.func"):
        torch.func.grad(loss)(torch.ones(3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(UnsupportedGradientError, match="forward-mode"):
            loss(dual)
