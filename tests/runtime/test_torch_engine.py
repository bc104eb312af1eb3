"""One listener on torch's engine: who hears of a backward pass, when, and what is left of it."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_gradguard import guard
from pytest_gradguard.messages import GradGuardConfirmed, GradGuardWarning
from pytest_gradguard.runtime.frameworks.torch import engine as torch_engine
from pytest_gradguard.runtime.frameworks.torch.engine import Backward, End, Listener, Order
from pytest_gradguard.runtime.kernel import faults


@pytest.fixture
def heard() -> Iterator[list[str]]:
    before = torch_engine._listeners.now
    yield []
    for one in torch_engine._listeners.now:
        if one not in before:
            torch_engine.unsubscribe(one)


def named(name: str, heard: list[str]) -> Listener:
    def begin(_: Backward) -> End:
        heard.append(f"before {name}")
        return lambda _, raised: heard.append(f"after {name}{' failed' * (raised is not None)}")

    return begin


def run() -> torch.Tensor:
    x = torch.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    return x.grad


def test_the_order_is_that_of_their_kinds_and_then_of_subscribing(heard: list[str]) -> None:
    torch_engine.subscribe(named("mode", heard), Order.COMPUTES)
    torch_engine.subscribe(named("first", heard))
    torch_engine.subscribe(named("second", heard))
    torch_engine.subscribe(named("report", heard), Order.REPORTS)
    run()
    names = ["report", "first", "second", "mode"]
    after = [f"after {name}" for name in reversed(names)]
    assert heard == [f"before {name}" for name in names] + after


def test_what_a_listener_is_told(heard: list[str]) -> None:
    told: list[Any] = []

    def begin(backward: Backward) -> End:
        def end(outcome: Any, raised: BaseException | None) -> None:
            caller = torch_engine.caller()
            told.append((backward, outcome, raised, caller and caller.f_code.co_name))

        return end

    torch_engine.subscribe(begin)
    torch_engine.subscribe(begin)
    x = torch.ones(2, requires_grad=True)
    y = (x**3).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    y.backward(torch.tensor(2.0))
    asked, filled = told
    assert asked[0].inputs == (x,)
    assert asked[0].create_graph
    assert not asked[0].accumulates
    assert asked[1] == (gradient,)
    assert asked[3] == "grad"
    assert filled[0].inputs == ()
    assert not filled[0].create_graph
    assert filled[0].accumulates
    assert filled[0].gradients == (torch.tensor(2.0),)
    assert filled[3] == "backward"


def test_a_listener_that_fails_breaks_no_backward(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_reported", False)

    def broken(_: Backward) -> End:
        raise ZeroDivisionError("ours")

    torch_engine.subscribe(broken)
    torch_engine.subscribe(lambda _: lambda outcome, raised: broken(_))  # type: ignore[arg-type]
    torch_engine.subscribe(named("last", heard))
    with pytest.warns(GradGuardWarning, match="ZeroDivisionError: ours"):
        assert run().tolist() == [2.0, 2.0]
    assert heard == ["before last", "after last"]


def test_a_finding_is_raised_once_all_have_heard(heard: list[str]) -> None:
    def end(_: Any, raised: BaseException | None) -> None:
        raise GradGuardConfirmed("found")

    torch_engine.subscribe(named("report", heard), Order.REPORTS)
    torch_engine.subscribe(lambda _: end)
    with pytest.raises(GradGuardConfirmed, match="found"):
        run()
    assert heard == ["before report", "after report"]


def test_a_backward_that_fails_raises_its_own_error_and_keeps_nothing(heard: list[str]) -> None:
    torch_engine.subscribe(named("one", heard))
    x = torch.ones(2, requires_grad=True)
    kept = weakref.ref(x)
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="implicitly created only for scalar") as caught:
            (x * 2).backward()
        loss = (x**2).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time") as caught:
            loss.backward()
        frames = [Path(str(entry.path)).name for entry in caught.traceback]
        del caught, loss, x
        assert kept() is None
    finally:
        gc.enable()
    assert "torch_engine.py" not in frames
    assert heard[-1] == "after one failed"


def test_torchs_own_tracing_does_not_take_the_wrapper_away(heard: list[str]) -> None:
    plain = torch.autograd._engine_run_backward
    torch_engine.subscribe(named("one", heard))
    tracing = getattr(torch.compiler, "_patch_engine_backward", None)
    if tracing is not None:
        with tracing():
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()
    assert heard == ["before one", "after one"]
    torch_engine.unsubscribe(torch_engine._listeners.now[-1])
    assert torch.autograd._engine_run_backward is plain
    assert torch.autograd.graph._engine_run_backward is plain


def test_what_listens_without_the_guard_goes_on_when_it_ends(heard: list[str]) -> None:
    with guard("record"):
        torch_engine.subscribe(named("guard's", heard))
        torch_engine.subscribe(named("simulation's", heard), lasting=True)
        run()
        heard.clear()
    run()
    assert heard == ["before simulation's", "after simulation's"]
