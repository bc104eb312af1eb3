"""`Parallel` gives what one process gives, to the bit."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import tasks  # noqa: E402
from torch import nn  # noqa: E402

from pytest_gradguard import guard  # noqa: E402
from pytest_gradguard.parallel import Parallel, UnsupportedGradientError, delayed  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """As loky's workers have it: batch normalisation rounds by the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def leaves(*sizes: Any, dtype: Any = None) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]
    return [one.requires_grad_() for one in made]


def equal_in_workers(
    program: Callable[[Any], Any], *, rounded: bool = False, **options: Any
) -> None:
    """The program gives the same with one process and with workers (rounded: but for rounding)."""
    alone = program(partial(Parallel, n_jobs=1))
    for _ in range(2):  # the second time with what was learnt of the first
        there = program(partial(Parallel, n_jobs=2, **options))
        assert len(alone) == len(there)
        for one, other in zip(alone, there, strict=True):
            assert type(one) is type(other)
            if one is not None:
                assert one.dtype == other.dtype
                assert one.requires_grad == other.requires_grad
                if rounded or options.get("backend") == "threading":  # threads add in any order
                    torch.testing.assert_close(one, other)
                else:
                    assert torch.equal(one, other), (one, other)


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
    outer = parallel()(delayed(tasks.same_mask)(w - 0.1 * grad) for _ in range(1))
    outer[0].pow(2).sum().backward()
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


# A second run that is the first


def test_arguments_are_those_of_the_forward_pass() -> None:
    def program(parallel: Any) -> Any:
        w, x, y = torch.zeros(1000, requires_grad=True), np.arange(1000.0), np.arange(1000.0)
        listed = [y]

        def late() -> Any:
            for k in range(2):
                x[:] = x[::-1] * (k + 1)
                yield delayed(tasks.times)(w, x)
                yield delayed(tasks.times)(w, {"x": listed})

        outs = parallel()(late())
        x[:], y[:], listed[0] = 0, 1, None
        sum(out.sum() for out in outs).backward()
        return [w.grad]

    equal_in_workers(program)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_memory_that_results_share_is_refused_once_changed(as_tensor: bool) -> None:
    w, x = torch.zeros(1000, requires_grad=True), np.arange(1000, dtype="float32")
    task, given = (tasks.polynomial, torch.from_numpy(x)) if as_tensor else (tasks.times_alias, x)
    (out,) = Parallel(n_jobs=2)([delayed(task)(w, given)])
    x[:] = x[::-1].copy()
    with pytest.raises(UnsupportedGradientError, match="was changed in place"):
        out.sum().backward()


@pytest.mark.parametrize("task", ["shuffled", "masked", "in_order_of"])
def test_results_that_differ_a_little_in_the_second_run_are_refused(task: str) -> None:
    w = torch.ones(1000, requires_grad=True)
    named = {str(k): one for k, one in enumerate(torch.arange(8.0).requires_grad_())}
    given = {
        "shuffled": (w, torch.arange(10_000.0).reshape(10, 1000)),
        "masked": (w,),
        "in_order_of": (named, set(named)),
    }[task]
    (out,) = Parallel(n_jobs=2)([delayed(getattr(tasks, task))(*given)])
    message = "computed something else when it ran again"
    if task == "in_order_of":  # the second run may find the same worker
        try:
            out.pow(2).sum().backward()
        except UnsupportedGradientError as error:
            assert message in str(error)
        return
    with pytest.raises(UnsupportedGradientError, match=message):
        out.pow(2).sum().backward()


def test_what_may_differ_and_generators_that_are_sent() -> None:
    def program(parallel: Any) -> Any:
        (w,) = leaves(3)
        ((loss, _),) = parallel()([delayed(tasks.timed)(w)])
        one, other = torch.Generator().manual_seed(1), np.random.default_rng(1)
        (out,) = parallel()([delayed(tasks.with_generators)(w, one, other)])
        (loss + out.exp().sum()).pow(2).backward()
        return [w.grad]

    equal_in_workers(program)


def test_gradcheck() -> None:
    (x, y) = leaves((2, 2), 2, dtype=torch.double)

    def together(x: Any, y: Any) -> Any:
        outs = Parallel(n_jobs=2)(delayed(tasks.polynomial)(x @ y, k) for k in (1.0, 2.0))
        return outs[0] * outs[1], outs[1].sum()

    assert torch.autograd.gradcheck(together, (x, y))


def test_random_numbers_are_the_same_in_the_backward_pass() -> None:
    x = torch.ones(200, requires_grad=True)
    outs = Parallel(n_jobs=2)(delayed(tasks.same_mask)(x) for _ in range(3))
    for out in outs:
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, out.detach())


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


# What is refused


def refused(*given: Any, **options: Any) -> str:
    with pytest.raises(UnsupportedGradientError) as caught:
        Parallel(n_jobs=2, **options)(given)
    message = str(caught.value)
    assert "\n" not in message
    return message


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


def test_transforms_are_refused() -> None:
    def loss(x: Any) -> Any:
        return Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, 2.0)])[0].sum()

    with pytest.raises(UnsupportedGradientError, match=r"torch\.func"):
        torch.func.grad(loss)(torch.ones(3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(UnsupportedGradientError, match="forward-mode"):
            loss(dual)


def test_changes_between_the_passes_are_refused() -> None:
    x, scale = *leaves(3), torch.full((3,), 2.0)
    (out,) = Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, scale)])
    scale += 1
    with pytest.raises(UnsupportedGradientError, match="`k`, an argument of `polynomial`"):
        out.sum().backward()
    (out,) = Parallel(n_jobs=2)([delayed(tasks.polynomial)(x, 2.0)])
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_results_that_differ_in_the_second_run_are_refused() -> None:
    (x,) = leaves(3)
    (out,) = Parallel(n_jobs=2)([delayed(tasks.guesses)(x)])
    with pytest.raises(UnsupportedGradientError, match="computed something else"):
        out.sum().backward()


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
