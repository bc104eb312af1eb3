"""A watched program computes what it computed, and keeps alive what it kept alive."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from children import run_python

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from pytest_gradguard import watch_gradients  # noqa: E402


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch() -> Any:
    return torch.linspace(-1, 1, 6).reshape(2, 3)


def gradients(net: Any) -> list[Any]:
    return [parameter.grad.clone() for parameter in net.parameters()]


def plain(net: Any) -> None:
    net(batch()).sum().backward()


def twice(net: Any) -> None:
    loss = net(batch()).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def double(net: Any) -> None:
    x = batch().requires_grad_()
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (gradient.pow(2).sum() + net(x).sum()).backward()


def checkpointed(net: Any) -> None:
    checkpoint(net, batch(), use_reentrant=False).sum().backward()


def reentrant(net: Any) -> None:
    checkpoint(net, batch().requires_grad_(), use_reentrant=True).sum().backward()


def scaled(net: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(batch()).float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def compiled(net: Any) -> None:
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    fast(batch()).sum().backward()


def data_parallel(net: Any) -> None:
    nn.DataParallel(net)(batch()).sum().backward()


def graph_and_values(net: Any) -> None:
    loss = net(batch())
    with torch.no_grad():
        factor = loss.detach().abs().sum().item() + float(loss.sum())
    (loss * torch.tensor([factor]) * loss.data.sum()).sum().backward()


RUNS: list[Callable[[Any], None]] = [
    plain,
    twice,
    double,
    checkpointed,
    reentrant,
    scaled,
    compiled,
    data_parallel,
    graph_and_values,
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_gradients_are_the_same(run: Callable[[Any], None]) -> None:
    bare, watched = model(), model()
    run(bare)
    with watch_gradients(watched):
        run(watched)
    for one, other in zip(gradients(bare), gradients(watched), strict=True):
        assert torch.equal(one, other)


def test_a_compiled_function_that_switches_modes_and_detaches_stays_one_graph() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: Any, w: Any) -> Any:
        with torch.no_grad():
            scale = (x * w).sum()
        gate = (x * w > 0).float().sum() + torch.argmax(x * w) + (x * w).topk(1).indices.sum()
        values = w.detach().sum() + w.data.sum() + Straight.apply(w).sum()
        return (x * w).sum() * scale * gate + values + torch.tensor(1.0)

    w = torch.ones(3, requires_grad=True)
    with watch_gradients(w):
        loss(batch(), w).backward()


COMPILED = """
import torch
from pytest_gradguard import watch_gradients


def compiled():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x, w):
        return (x * w).sum() * torch.argmax(x * w)

    return loss


w, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
for _ in range(2):
    with watch_gradients(w):
        compiled()(x, w).backward()
compiled()(x, w).backward()
"""


def test_functions_are_compiled_after_a_watch_in_which_the_compiler_was_loaded() -> None:
    done = run_python("-c", COMPILED)
    assert done.returncode == 0, done.stderr


def jacobian_of_parameters(net: Any, named: dict[str, Any], *, create_graph: bool) -> None:
    def loss(*values: Any) -> Any:
        return torch.func.functional_call(net, dict(zip(named, values, strict=True)), (batch(),))

    torch.autograd.functional.jacobian(loss, tuple(named.values()), create_graph=create_graph)


@pytest.mark.parametrize(
    "transform",
    [
        lambda net, named: torch.func.grad(
            lambda p: torch.func.functional_call(net, p, (batch(),)).sum()
        )(named),
        lambda net, named: torch.func.vmap(
            torch.func.grad(lambda p, x: torch.func.functional_call(net, p, (x,)).sum()),
            in_dims=(None, 0),
        )(named, batch()),
        lambda net, named: torch.func.vjp(
            lambda p: torch.func.functional_call(net, p, (batch(),)).sum(), named
        )[1](torch.ones(())),
        lambda net, named: torch.func.jacrev(
            lambda p: torch.func.functional_call(net, p, (batch(),))
        )(named),
        lambda net, named: torch.func.hessian(
            lambda p: torch.func.functional_call(net, p, (batch(),)).sum()
        )(named),
        lambda net, named: torch.autograd.grad(net(batch()).sum(), list(net.parameters())),
        lambda net, named: jacobian_of_parameters(net, named, create_graph=False),
        lambda net, named: jacobian_of_parameters(net, named, create_graph=True),
    ],
    ids=[
        *("grad", "vmap of grad", "vjp", "jacrev", "hessian", "autograd.grad"),
        *("jacobian", "jacobian with a graph"),
    ],
)
def test_gradients_that_are_returned_count(transform: Any) -> None:
    net = model()
    with watch_gradients(net):
        transform(net, dict(net.named_parameters()))


def test_a_new_layer_with_an_optimizer_of_its_own_counts() -> None:
    net = model()
    frozen = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch_gradients(net):
        net[0] = torch.nn.Linear(3, 4)
        optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
        net(batch()).sum().backward()
        frozen.step()
        optimizer.step()


class Straight(torch.autograd.Function):
    """Rounds, and gives the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


def score(h: Any) -> Any:
    policy = torch.distributions.Categorical(logits=h)
    return policy.log_prob(policy.sample())[:, None].expand(2, 4)


@pytest.mark.parametrize(
    "between",
    [
        lambda h: torch.nn.functional.gumbel_softmax(h, hard=True),
        lambda h: h + (h.round() - h).detach(),
        Straight.apply,
        lambda h: torch.distributions.Normal(h, 1.0).rsample(),
        score,
        lambda h: torch.where(h > 0, h, h * 0.1) * (h > h.mean()).float() + h.topk(4).values,
        lambda h: checkpoint(torch.tanh, h, use_reentrant=True),
        lambda h: torch.zeros(2, 4).copy_(h) + h.max(1, keepdim=True).values,
        lambda h: torch.vmap(lambda row: row * (row > 0).float() + row)(h),
    ],
    ids=[
        "gumbel",
        "straight",
        "function",
        "rsample",
        "score",
        "masks",
        "checkpoint",
        "copy",
        "vmap",
    ],
)
def test_ways_through_that_keep_the_graph_are_no_findings(between: Any) -> None:
    net = model()
    with watch_gradients(net):
        net[2](between(net[0](batch()))).sum().backward()


def test_functions_are_pickled_by_their_names() -> None:
    with watch_gradients(model()) as watch:
        for function in (torch.argmax, torch.Tensor.argmax, torch.special.bessel_j0):
            assert pickle.loads(pickle.dumps(function)) is function
        watch.close()


def test_hooks_run_in_their_order() -> None:
    w = torch.ones(2, requires_grad=True)
    order: list[str] = []
    w.register_hook(lambda g: order.append("first"))
    w.register_post_accumulate_grad_hook(lambda p: order.append("third"))
    w.register_post_accumulate_grad_hook(lambda p: order.append("fourth"))
    with watch_gradients(w):
        w.register_hook(lambda g: order.append("second"))
        w.register_post_accumulate_grad_hook(lambda p: order.append("fifth"))
        (w * 2).sum().backward()
    assert order == ["first", "second", "third", "fourth", "fifth"]


def test_a_gradient_used_up_in_a_hook_counts() -> None:
    net = model()
    for parameter in net.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def step(p: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    with watch_gradients(net):
        plain(net)
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_cleared_gradient_counts(set_to_none: bool) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch_gradients(net):
        plain(net)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


def test_a_gradient_cleared_in_place_is_not_zero() -> None:
    net = model()
    first, _, last = net
    with watch_gradients(net, nonzero=True):
        plain(net)
        net.zero_grad(set_to_none=False)
    with watch_gradients(net, nonzero=True):
        plain(net)
        first.weight.grad.zero_()
        torch._foreach_zero_([first.bias.grad, last.weight.grad, last.bias.grad])


def test_a_gradient_set_by_hand_counts_when_it_is_cleared_after_the_step() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for set_to_none in (True, False):
        with watch_gradients(net, nonzero=True):
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            optimizer.zero_grad(set_to_none)


SHARED_GRADIENTS = """
import torch
from torch import nn

from pytest_gradguard import GradGuardError, watch_gradients

used, idle = nn.Linear(3, 1).share_memory(), nn.Linear(3, 1).share_memory()
for parameter in (*used.parameters(), *idle.parameters()):
    parameter.grad = torch.zeros_like(parameter).share_memory_()


def work():
    used(torch.ones(2, 3)).sum().backward()


try:
    with watch_gradients({"used": used, "idle": idle}):
        process = torch.multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
except GradGuardError as error:
    for finding in error.findings:
        print(*finding.details["objects"])
"""


def test_a_gradient_that_a_process_writes_into_shared_memory_counts() -> None:
    done = run_python("-c", SHARED_GRADIENTS, forked="torch")
    assert done.stdout.splitlines() == ["idle.weight idle.bias"], done.stderr


def test_parameters_that_appear_later_are_watched() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    with watch_gradients(net) as watch:
        net(batch()).sum().backward()
        net.zero_grad()
        net.append(nn.Linear(1, 1))
        net(batch()).sum().backward()
    assert watch.reasons == {}


def test_shared_parameters_count_once() -> None:
    net = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    net["two"].weight = net["one"].weight
    watch = watch_gradients(net).start()
    watch.stop()
    assert list(watch.reasons) == ["one.weight", "one.bias", "two.bias"]


def test_a_gradient_set_by_hand_counts_and_an_old_one_does_not() -> None:
    new, old = (torch.ones(2, requires_grad=True) for _ in range(2))
    old.grad = torch.ones(2)
    watch = watch_gradients({"new": new, "old": old}).start()
    new.grad = torch.ones(2)
    watch.stop()
    assert list(watch.reasons) == ["old"]


def test_copies_and_pickles_of_a_watched_model_are_not_watched() -> None:
    net = model()
    with watch_gradients(net):
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            plain(other)
            for parameter in other.parameters():
                assert not parameter._post_accumulate_grad_hooks
        plain(net)


def test_every_name_is_put_back() -> None:
    names = [
        (torch.Tensor, name)
        for name in ("detach", "data", "item", "numpy", "to", "__float__", "requires_grad_")
    ]
    names += [(torch.Tensor, name) for name in ("argmax", "__gt__", "__reduce_ex__", "copy_")]
    names += [(torch, "tensor"), (torch, "argmax"), (torch.autograd, "_engine_run_backward")]
    names += [(torch.no_grad, "__enter__"), (nn.Module, "zero_grad")]
    before = [vars(owner).get(name) for owner, name in names]
    net = model()
    with watch_gradients(net), watch_gradients(net[0]):
        assert [vars(owner).get(name) for owner, name in names] != before
        plain(net)
    assert [vars(owner).get(name) for owner, name in names] == before
    assert not any(parameter._post_accumulate_grad_hooks for parameter in net.parameters())


def test_the_graph_is_freed_after_backward_and_the_model_when_it_is_dropped() -> None:
    net = model()
    watch = watch_gradients(net).start()
    hidden = net[0](batch())
    loss = net[2](hidden.tanh()).sum() + hidden.detach().sum()
    node, tensor = weakref.ref(loss), weakref.ref(hidden)
    loss.backward()
    del loss, hidden
    gc.collect()
    assert node() is None
    assert tensor() is None
    parameter = weakref.ref(net[0].weight)
    del net
    gc.collect()
    assert parameter() is None
    assert watch.stop() == []


def test_the_reason_of_a_model_that_is_gone_is_kept() -> None:
    net = model()
    net[2].requires_grad_(False)
    watch = watch_gradients(net).start()
    plain(net)
    del net
    gc.collect()
    watch.stop()
    assert {name: reason.kind for name, reason in watch.reasons.items()} == {
        "2.weight": "frozen",
        "2.bias": "frozen",
    }


def test_a_failing_block_keeps_its_own_exception() -> None:
    with pytest.raises(ZeroDivisionError), watch_gradients(model()):
        raise ZeroDivisionError


def test_an_exception_of_the_backward_shows_no_frame_of_the_watch() -> None:
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError) as caught, watch_gradients(w):
        (w * 2).backward()
    files = [str(entry.path) for entry in caught.traceback]
    assert not any("pytest_gradguard" in path for path in files)


class Refusing(torch.autograd.Function):
    """Raises in its forward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        raise ValueError("no")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise adds the frame again")
@pytest.mark.parametrize(
    "refused",
    [
        lambda w: w.item(),
        lambda w: w.argmax(dim=7),
        lambda w: w.detach().add_(torch.ones(7)),
        lambda w: Refusing.apply(w),
        lambda w: nn.Linear(2, 1).load_state_dict({"other": w}),
        lambda w: torch.tensor([w, "no"]),
    ],
    ids=["reading", "operating", "writing", "applying", "loading", "constructing"],
)
def test_an_error_of_the_programs_shows_no_frame_of_the_watch(refused: Any) -> None:
    w = torch.ones(2, requires_grad=True)
    for within in (torch.enable_grad, torch.no_grad):
        with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as caught:  # noqa: SIM117
            with watch_gradients(w), within():
                refused(w)
        files = [str(entry.path) for entry in caught.traceback]
        assert not any("pytest_gradguard" in path for path in files)


def test_layers_may_be_made_where_gradients_are_off() -> None:
    net = model()
    with warnings.catch_warnings(record=True) as caught, watch_gradients(net):
        warnings.simplefilter("always")
        plain(net)
        with torch.no_grad():
            nn.Linear(2, 1)
    assert caught == []


def test_script_knows_the_functions_during_a_watch_and_after_it() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sum() * torch.tensor(2.0) + torch.as_tensor(1.0)

    net = Scaled()
    with watch_gradients(net):
        torch.jit.script(net)(batch()).backward()
    assert torch.jit.script(net)(batch()).item() == net(batch()).item()


def test_a_model_may_be_compiled_where_gradients_are_off() -> None:
    net = model()
    with watch_gradients(net):
        with torch.no_grad():
            torch.compile(net, backend="eager", fullgraph=True)(batch())
        plain(net)


def test_meta_tensors_can_be_watched() -> None:
    net = nn.Linear(3, 1, device="meta")
    with watch_gradients(net):
        net(torch.ones(2, 3, device="meta")).sum().backward()
