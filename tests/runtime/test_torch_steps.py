"""One list of those who hear of optimizer steps: what they hear, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.runtime.frameworks.torch import steps
from pytest_gradguard.runtime.kernel import faults

POST: dict[int, Any] = torch_optimizer._global_optimizer_post_hooks


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


@pytest.fixture
def listen() -> Iterator[Callable[..., None]]:
    listening: list[steps.Listener] = []

    def subscribe(listener: steps.Listener, *raises: type[Exception]) -> None:
        listening.append(listener)
        steps.after.subscribe(listener, raises=raises)

    yield subscribe
    for one in listening:
        steps.after.unsubscribe(one)


def test_torch_has_one_hook_while_anybody_listens(
    optimizer: torch.optim.Optimizer, listen: Callable[..., None]
) -> None:
    before, heard = len(POST), []
    one, other = (lambda _: heard.append("one")), (lambda _: heard.append("other"))
    for listener in (one, other, one):
        listen(listener)
    assert len(POST) == before + 1
    optimizer.step()
    assert heard == ["one", "other"]
    steps.after.unsubscribe(one)
    assert len(POST) == before + 1
    steps.after.unsubscribe(other)
    assert len(POST) == before


def test_before_and_after(optimizer: torch.optim.Optimizer, listen: Callable[..., None]) -> None:
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = torch.ones(1)
    values: list[float] = []

    def note(stepped: torch.optim.Optimizer) -> None:
        assert stepped is optimizer
        values.append(round(parameter.item(), 3))

    steps.before.subscribe(note)
    listen(note)
    optimizer.step()
    steps.before.unsubscribe(note)
    assert values == [1.0, 0.9]


def test_who_stops_listening_in_a_step_does_not_break_it(
    optimizer: torch.optim.Optimizer, listen: Callable[..., None]
) -> None:
    """Torch fails where a hook is taken off while it goes through them."""
    before = len(POST)

    def once(_: torch.optim.Optimizer) -> None:
        steps.after.unsubscribe(once)

    listen(once)
    theirs = torch_optimizer.register_optimizer_step_post_hook(lambda *_: None)
    optimizer.step()
    optimizer.step()
    theirs.remove()
    torch.ones(1, requires_grad=True).sum().backward()
    assert len(POST) == before


def test_a_failure_is_a_warning_and_the_others_are_told(
    optimizer: torch.optim.Optimizer,
    listen: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "_reported", False)
    heard: list[str] = []
    listen(lambda _: {}["missing"])
    listen(lambda _: heard.append("other"))
    with pytest.warns(GradGuardWarning, match="KeyError: 'missing'"):
        optimizer.step()
    assert heard == ["other"]


@pytest.mark.parametrize("error", [GradGuardError([]), ValueError("no such pattern")])
def test_what_is_meant_for_the_user_is_raised_once_all_are_told(
    optimizer: torch.optim.Optimizer, listen: Callable[..., None], error: Exception
) -> None:
    heard: list[str] = []

    def says(_: torch.optim.Optimizer) -> None:
        raise error

    listen(says, ValueError)
    listen(lambda _: heard.append("other"))
    with pytest.raises(type(error)):
        optimizer.step()
    assert heard == ["other"]
