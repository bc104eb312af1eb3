"""The guard refers to tensors without standing in the way of those who swap, free or watch them."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
import workers
from joblib import Parallel, delayed
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import swap_tensors

from pytest_gradguard import GradGuardError, guard, install, uninstall, watch_gradients
from pytest_gradguard.runtime.kernel import calls, references


@pytest.fixture(autouse=True)
def swap() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def of_two_tensors(module: nn.Linear) -> nn.Linear:
    values = module.weight.detach()
    module.weight = nn.Parameter(TwoTensor(values, values.clone()))
    return module


def reload(module: nn.Module, *, assign: bool) -> None:
    state = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=assign)


CONVERSIONS: dict[str, Callable[[nn.Module], object]] = {
    "double": lambda module: module.double(),
    "to": lambda module: module.to(torch.bfloat16),
    "load": lambda module: reload(module, assign=False),
    "assign": lambda module: reload(module, assign=True),
    "parametrize": lambda module: nn.utils.parametrizations.weight_norm(module),
}


def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def train(module: nn.Module) -> None:
    dtype = next(module.parameters()).dtype
    module(torch.ones(2, 3, dtype=dtype)).sum().backward()


def test_modules_that_went_to_workers_are_converted() -> None:
    with guard("record") as report:
        module = nn.Linear(3, 2)
        results = Parallel(2)(delayed(forward)(module, torch.ones(1, 3)) for _ in range(2))
        weight = module.weight
        gc.collect()
        for convert in CONVERSIONS.values():
            convert(copy.deepcopy(module))
            convert(module)
        one, other = results
        swap_tensors(one, other)  # imported before the guard was there
        held = weakref.ref(weight)
        with pytest.raises(RuntimeError, match="Cannot swap t1 because it has weakref"):
            swap_tensors(weight, nn.Parameter(torch.ones(2, 3)))  # as it does without a guard
        assert held() is weight
    assert {finding.code for finding in report.findings} == {"GG107", "GG102"}


def test_what_outlives_the_guard_holds_nothing() -> None:
    install("record")
    module = nn.Linear(3, 2)
    results = Parallel(2)(delayed(forward)(module, torch.ones(1, 3)) for _ in range(2))
    sum(result.sum() for result in results).backward()
    uninstall()
    assert not weakref.getweakrefs(module.weight)
    assert not weakref.getweakrefs(results[0])
    assert torch.utils.weakref is weakref
    module.double()
    with pytest.raises(GradGuardError) as caught, watch_gradients(module):
        pass
    assert caught.value.__traceback__ is not None  # its frames hold the watch
    assert not weakref.getweakrefs(module.weight)
    module.float()


def test_a_reference_leads_to_the_object_until_it_is_freed_or_the_guard_ends() -> None:
    tensor, freed = torch.ones(2), []
    assert references.refer(tensor)() is None  # nobody listens
    with guard("record"):
        reference = references.refer(tensor, lambda: freed.append(1))
        assert references.refer(tensor) is reference
        other = torch.zeros(2)
        swap_tensors(tensor, other)
        assert reference() is tensor
        assert tensor.tolist() == [0.0, 0.0]
        del tensor
        assert freed == [1]
        assert reference() is None
        kept = references.refer(other, lambda: freed.append(2))
    assert kept() is None
    del other
    assert freed == [1]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("plain", name) for name in CONVERSIONS] + [("two", "double"), ("two", "to"), ("two", "load")],
)
def test_a_watched_module_is_converted_and_judged(kind: str, name: str) -> None:
    def make() -> nn.Linear:
        return nn.Linear(3, 2) if kind == "plain" else of_two_tensors(nn.Linear(3, 2))

    convert = CONVERSIONS[name]
    module = make()
    with watch_gradients(module):
        convert(module)
        train(module)
        module.zero_grad()
    with watch_gradients(module, nonzero=True):
        train(module)
        convert(module)
        module.zero_grad()
    trained = make()
    train(trained)
    watch = watch_gradients(trained).start()
    convert(trained)  # converts the old gradients, too
    watch.stop()
    assert watch.reasons.keys() == {name for name, _ in trained.named_parameters()}


def test_gradients_after_a_swap_are_measured() -> None:
    module = nn.Linear(3, 2)
    watch = watch_gradients(module, nonzero=True).start()
    train(module)
    module.double()
    module.zero_grad()
    (module(torch.ones(2, 3).double()) * 0).sum().backward()
    module.zero_grad()
    watch.stop()
    assert {reason.kind for reason in watch.reasons.values()} == {"all-zero"}


def test_tensors_that_swap_their_content_keep_their_names() -> None:
    one, other = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    watch = watch_gradients({"one": one, "other": other}).start()
    swap_tensors(one, other)
    (one * 2).sum().backward()
    one.grad = None
    watch.stop()
    assert watch.reasons.keys() == {"other"}


@pytest.mark.parametrize("inside", [True, False])
def test_hooks_of_the_programs_own_run_after_a_swap(inside: bool) -> None:
    module, called = nn.Linear(3, 2), []
    with watch_gradients(module):
        train(module)
        if inside:
            module.double()
            module.weight.register_post_accumulate_grad_hook(called.append)
            train(module)
    if not inside:
        module.double()
        module.weight.register_post_accumulate_grad_hook(called.append)
        train(module)
    assert len(called) == 1


def test_a_watched_tensor_carries_nothing_of_ours() -> None:
    module = nn.Linear(3, 2)
    plain = pickle.dumps(module.state_dict())
    watch_gradients(module)  # nobody enters it
    assert not module.weight._post_accumulate_grad_hooks
    with watch_gradients(module):
        train(module)
        assert pickle.dumps(module.state_dict()) == plain
        assert not vars(module.weight)


def comes_true(claim: Callable[[], bool]) -> bool:
    """Whether `claim` holds soon: a thread of the pool may hold a task until it looks for more."""
    end = time.monotonic() + 30
    while not claim() and time.monotonic() < end:
        time.sleep(0.01)
    return claim()


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_a_finished_call_is_freed_with_its_last_result(backend: str) -> None:
    gc.collect()
    gc.disable()
    try:
        with guard("record") as report:
            x = torch.ones(3, requires_grad=True)
            results = Parallel(2, backend=backend)(delayed(workers.double)(x) for _ in range(2))
            sum(result.sum() for result in results).backward()
            assert not calls._by_token or backend != "threading"
            held = [weakref.ref(tensor) for tensor in (x, *results)]
            del x, results
            assert comes_true(lambda: [reference() for reference in held] == [None] * 3)
            assert comes_true(lambda: not calls._by_token)
            assert report.findings or backend == "threading"
            Parallel(2, backend=backend)(delayed(abs)(k) for k in range(4))
            assert comes_true(lambda: not calls._by_token)
    finally:
        gc.enable()
