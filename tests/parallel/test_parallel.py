"""`Parallel` gives what one process gives, to the bit."""

from __future__ import annotations

import copy
import traceback
import warnings
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import tasks  # noqa: E402
from comparison import equal_in_workers, leaves  # noqa: E402
from torch import nn  # noqa: E402

from pytest_gradguard import guard  # noqa: E402
from pytest_gradguard.parallel import Parallel, delayed  # noqa: E402

BACKENDS = [
    {},
    {"backend": "multiprocessing"},
    {"backend": "threading"},
    {"return_as": "generator"},
    {"batch_size": 2, "pre_dispatch": "all"},
]


@pytest.mark.parametrize("options", BACKENDS, ids=str)
def test_gradients_of_a_tensor_that_all_tasks_share(options: Any) -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(7)
        outs = list(parallel()(delayed(tasks.polynomial)(x, k) for k in range(4)))
        (outs[0] * outs[1] + outs[2].exp() - outs[3]).mean().backward()
        return [x.grad, *outs]

    equal_in_workers(program, **options)


def test_results_out_of_order() -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(7)
        outs = parallel()(delayed(tasks.identity)(x * k, 0) for k in range(4))
        sum(outs).sum().backward()
        return [x.grad]

    equal_in_workers(program, return_as="generator_unordered")


def test_containers_and_what_is_in_them() -> None:
    def program(parallel: Any) -> Any:
        x, y, z, u, v = leaves(3, 3, (2, 2), (2, 2), 4)
        given = {"x": x, "y": (y * 2,), "z": tasks.Holder(z)}
        pairs = [tasks.Pair(u, tasks.Record(1, {"deep": [v]})) for _ in range(2)]
        first, second = parallel()(delayed(tasks.containers)(given, p, k=2.0) for p in pairs)
        loss = first["total"] + second["pair"].one.sum() + second["record"].value.sum()
        assert type(first["pair"]) is tasks.Pair
        assert first["pair"].other[1] is None
        assert first["record"].more == (3, "word")
        loss.backward()
        grads = [one.grad for one in (x, y, z, u, v)]
        return [*grads, first["count"], torch.as_tensor(first["array"]), first["total"]]

    equal_in_workers(program)


def test_functions_that_carry_what_they_use() -> None:
    def program(parallel: Any) -> Any:
        x, y, z = leaves(3, 3, 3)
        net = nn.Linear(3, 2)
        nn.init.ones_(net.weight)
        nn.init.ones_(net.bias)
        outs = parallel()(
            [
                delayed(tasks.Holder(x).scaled)(2.0),
                delayed(tasks.Holder(y))(3.0),
                delayed(partial(tasks.polynomial, z))(k=2.0),
                delayed(net)(x),
                delayed(net.forward)(y),
            ]
        )
        sum(one.sum() for one in outs).backward()
        return [x.grad, y.grad, z.grad, net.weight.grad, net.bias.grad]

    equal_in_workers(program)


def test_modules_with_normalisation_and_dropout() -> None:
    data = torch.randn(2, 6, 3)

    def program(parallel: Any) -> Any:
        torch.manual_seed(0)
        net = tasks.Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        losses = []
        for step in range(3):
            optimizer.zero_grad()
            outs = parallel()(delayed(tasks.seeded)(net, x, step) for x in data)
            loss = torch.stack(outs).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *net.parameters(), *[p.grad for p in net.parameters()]]

    equal_in_workers(program)


def test_the_buffers_of_the_last_task_come_back() -> None:
    net = tasks.Net()
    expected = copy.deepcopy(net)
    data = torch.randn(3, 6, 3)
    expected(data[2])
    Parallel(n_jobs=2)(delayed(tasks.forward)(net, x) for x in data)
    for one, other in zip(net.buffers(), expected.buffers(), strict=True):
        assert torch.equal(one, other)


def test_buffers_that_the_task_rebinds_come_back() -> None:
    def program(parallel: Any) -> Any:
        net = tasks.Keeps()
        (out,) = parallel()([delayed(tasks.forward)(net, torch.tensor([1.0, 2.0]))])
        net(torch.ones(2))
        out.backward()
        return [net.mean, net.seen, net.w.grad]

    equal_in_workers(program)


def test_tied_frozen_and_shared_parameters() -> None:
    def program(parallel: Any) -> Any:
        torch.manual_seed(0)
        tied, frozen = tasks.Tied(), nn.Linear(3, 3)
        frozen.bias.requires_grad_(False)
        seen = []
        tied.one.weight.register_hook(lambda grad: seen.append(grad.clone()))
        x = torch.randn(2, 3)
        outs = parallel()(delayed(nn.Sequential(tied, frozen))(row) for row in x)
        (outs[0] * outs[1]).sum().backward()
        assert len(seen) == 1
        assert frozen.bias.grad is None
        return [tied.one.weight.grad, frozen.weight.grad, *seen]

    equal_in_workers(program)


def test_tensors_that_do_not_lie_in_order() -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves((4, 6))
        given = [x.T, x[:, 1], x[1:3, ::2], x.expand(2, 4, 6), x[0, 0], x.to(torch.bfloat16)]
        outs = parallel()(delayed(tasks.polynomial)(one, 2.0) for one in given)
        sum(one.sum() for one in outs).backward()
        assert [o.stride() for o in outs[:1]] == [x.T.stride()]
        return [x.grad, *outs]

    equal_in_workers(program)


def test_numbers_of_other_kinds() -> None:
    def program(parallel: Any) -> Any:
        (z,) = leaves(3, dtype=torch.complex128)
        outs = parallel()(delayed(tasks.polynomial)(one, 2.0) for one in (z, z.conj(), z[0]))
        sum(one.abs().sum() for one in outs).backward()
        return [z.grad, *outs]

    equal_in_workers(program)


def test_only_what_is_used_gets_gradients() -> None:
    def program(parallel: Any) -> Any:
        x, y, unused = leaves(3, 3, 3)
        upstream = [x.exp(), y.exp()]
        outs = parallel()(delayed(tasks.several)(one, 2) for one in upstream)
        outs[0]["a"].sum().backward()
        assert y.grad is None
        outs[1]["a"].sum().backward()
        assert not outs[0]["detached"].requires_grad
        (nothing,) = torch.autograd.grad(outs[0]["unused"].sum(), unused, allow_unused=True)
        return [x.grad, y.grad, nothing, outs[0]["detached"], outs[0]["index"]]

    equal_in_workers(program)


def test_a_graph_is_freed_as_any_other() -> None:
    (x,) = leaves(3)
    (out,) = Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, 2.0)])
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_an_argument_that_comes_back_is_the_argument() -> None:
    (x,) = leaves(3)
    same, other = Parallel(n_jobs=2)(delayed(tasks.identity)(x, k) for k in (1, 0))
    assert same is x
    assert other is not x


def test_gradients_that_a_view_would_not_have() -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(3)
        outs = parallel()(delayed(function)(x) for function in (tasks.reverses, tasks.views))
        sum(one.sum() for one in outs).backward()
        return [x.grad, *outs]

    equal_in_workers(program)


def test_models_that_a_task_makes_for_itself() -> None:
    def program(parallel: Any) -> Any:
        points, (x,) = tasks.Points(), leaves(3)
        outs = parallel()(delayed(points.loss)(count) for count in (4, 5))
        outs += parallel()(delayed(tasks.model_of_its_own)(one) for one in (x, torch.ones(3)))
        sum(out.sum() for out in outs).backward()
        assert not outs[-1].is_leaf
        return [points.net.weight.grad, x.grad, *outs]

    equal_in_workers(program)


def test_a_graph_that_the_task_records_itself() -> None:
    def program(parallel: Any) -> Any:
        (w,) = leaves(3)
        with torch.no_grad():
            outs = parallel()(delayed(tasks.enables)(w) for _ in range(2))
        (outs[0] * outs[1]).backward()
        return [w.grad]

    equal_in_workers(program)


def test_calls_inside_tasks() -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(3)
        sum(parallel()(delayed(tasks.nested)(x, k) for k in range(2))).sum().backward()
        return [x.grad]

    equal_in_workers(program)


@pytest.mark.parametrize("options", [{}, {"backend": "threading"}], ids=str)
def test_the_modes_of_the_caller_hold(options: Any) -> None:
    (x,) = leaves((2, 2))

    def seen(**more: Any) -> Any:
        return Parallel(n_jobs=2, **options)(delayed(tasks.modes)(x) for _ in range(2))[1]

    with torch.no_grad():
        assert seen()["requires"] is False
    with torch.inference_mode():
        assert seen()["inference"] is True
    with torch.autocast("cpu", torch.bfloat16):
        there = seen()
        assert there["autocast"] is True
        assert there["product"].dtype is torch.bfloat16
    there["product"].sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(_product(x).sum(), x)[0])
    torch.set_default_dtype(torch.double)
    try:
        assert seen()["ones"].dtype is torch.double
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen()["grad"] is True


def _product(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def test_tasks_made_late_are_made_in_the_modes_of_the_caller() -> None:
    (x,) = leaves(3)
    made = []

    def late() -> Any:
        for k in range(12):
            made.append((x * k).requires_grad)
            yield delayed(tasks.identity)(x.detach(), k)

    with torch.no_grad():
        Parallel(n_jobs=2)(late())
    assert made == [False] * 12


def test_arrays_are_mapped_into_memory() -> None:
    (x,) = leaves(3)
    array = np.arange(300_000.0)
    outs = Parallel(n_jobs=2)(delayed(tasks.large)(array, x) for _ in range(2))
    assert [mapped for mapped, _ in outs] == [True, True]
    outs[1][1].sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_a_model_that_is_trained_there_comes_back_as_a_copy() -> None:
    net = nn.Linear(3, 1)
    before = net.weight.detach().clone()
    trained = Parallel(n_jobs=2)(delayed(tasks.trains)(net, x) for x in torch.ones(2, 4, 3))
    assert torch.equal(net.weight, before)
    assert not torch.equal(trained[0].weight, before)
    assert trained[0].weight.is_leaf
    assert trained[0].weight.requires_grad


@pytest.mark.parametrize("clear", [False, True])
def test_gradients_that_the_task_itself_leaves(clear: bool) -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(3)
        work = tasks.leaves_after_clearing if clear else tasks.leaves_gradients
        parallel()(delayed(work)(x, k) for k in (1.0, 2.0))
        return [x.grad]

    equal_in_workers(program)


def test_a_parallel_that_is_kept_and_its_context() -> None:
    def program(parallel: Any) -> Any:
        (x,) = leaves(3)
        with parallel() as kept:
            for _ in range(2):
                sum(kept(delayed(tasks.polynomial)(x, k) for k in range(2))).sum().backward()
            out = kept([delayed(tasks.polynomial)(x, 3)])[0]
        out.sum().backward()
        return [x.grad]

    equal_in_workers(program)
    equal_in_workers(program, backend="multiprocessing")


def test_tasks_without_gradients_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gradguard.parallel import shipping

    monkeypatch.setattr(shipping, "pack_task", None)
    given = [1, "word", np.ones(3), torch.ones(3), {"a": [None, (2.5,)]}]
    assert len(Parallel(n_jobs=2)(delayed(tasks.identity)(one, 1) for one in given)) == 5


# Errors of the user's


@pytest.mark.parametrize("options", [{}, {"backend": "threading"}], ids=str)
def test_errors_are_the_users_own(options: Any) -> None:
    (x,) = leaves(3)
    with pytest.raises(KeyError) as caught:
        Parallel(n_jobs=2, **options)(delayed(tasks.fails)(x, k) for k in range(3))
    assert 'raise KeyError("task of the user\'s")' in _printed(caught.value)
    outs = Parallel(n_jobs=2, **options)(delayed(tasks.fails_backward)(x) for _ in range(2))
    with pytest.raises(ArithmeticError) as raised:
        sum(outs).sum().backward()
    assert 'raise ArithmeticError("backward of the user\'s")' in _printed(raised.value)
    sum(Parallel(n_jobs=2, **options)([delayed(tasks.identity)(x, 0)])).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def _printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# Under the guard


def test_the_guard_is_silent_and_still_judges_joblibs_own() -> None:
    torch.manual_seed(0)
    net, (x,) = tasks.Net(), leaves(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with guard(mode="record") as report, warnings.catch_warnings():
        for _ in range(2):
            outs = Parallel(n_jobs=2)(
                delayed(tasks.forward)(net, one) for one in torch.ones(2, 4, 3)
            )
            more = Parallel(n_jobs=2)(delayed(tasks.polynomial)(x.clone(), k) for k in range(2))
            optimizer.zero_grad()
            (sum(outs).sum() + (more[0] * more[1]).sum()).backward()
            optimizer.step()
        with torch.no_grad():
            Parallel(n_jobs=2)(delayed(tasks.forward)(net, one) for one in torch.ones(2, 4, 3))
        net(torch.ones(2, 3))
        assert [f for f in report.findings if f.severity.label != "info"] == []
        joblib.Parallel(n_jobs=2)(delayed(tasks.polynomial)(x.clone(), k) for k in range(2))
    assert "GG101" in {finding.code for finding in report.findings}


def test_dask() -> None:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False}

    def program(parallel: Any) -> Any:
        x, y = leaves(3, 3)
        outs = parallel()(delayed(tasks.polynomial)(one, 2.0) for one in (x, y * 2, x))
        (outs[0] * outs[1] + outs[2]).sum().backward()
        return [x.grad, y.grad]

    with distributed.Client(**options, dashboard_address=None), joblib.parallel_config("dask"):
        there = program(Parallel)
    for one, other in zip(program(partial(Parallel, n_jobs=1)), there, strict=True):
        assert torch.equal(one, other)
