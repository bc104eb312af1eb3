"""`watch_gradients(model, steps=N)`: a watch that a plain loop ends by its optimizer's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pytest_gradguard import GradGuardError, watch_gradients  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)
        self.uses_body = False

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        return self.head(hidden if self.uses_body else hidden.detach())


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def step(net: Net) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    return train


def hooks() -> int:
    return len(__import__("sys").modules["torch.optim.optimizer"]._global_optimizer_post_hooks)


def test_the_step_raises_with_names_and_reason(net: Net, step: Callable[[], None]) -> None:
    detach = torch.Tensor.detach
    watch_gradients(net, steps=1)
    assert torch.Tensor.detach is not detach
    with pytest.raises(GradGuardError, match=r"`body\.weight` and `body\.bias`.*`\.detach\(\)`"):
        step()
    assert torch.Tensor.detach is detach
    assert not hooks()
    step()


def test_all_is_as_it_was_once_it_has_gone_well(net: Net, step: Callable[[], None]) -> None:
    detach, engine = torch.Tensor.detach, torch.autograd._engine_run_backward
    net.uses_body = True
    watch_gradients(net, steps=2)
    for _ in range(3):
        step()
    assert torch.Tensor.detach is detach
    assert torch.autograd._engine_run_backward is engine
    assert not hooks()
    net.uses_body = False
    step()


def test_a_gradient_of_any_of_the_steps_counts(net: Net, step: Callable[[], None]) -> None:
    watch = watch_gradients(net, steps=2)
    step()
    net.uses_body = True
    step()
    assert watch.findings == []
    watch.close()


def test_steps_of_other_optimizers_do_not_count(net: Net, step: Callable[[], None]) -> None:
    other = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    watch = watch_gradients(net, steps=1)
    other(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(GradGuardError):
        step()
    assert not watch.is_open


def test_a_block_ends_a_watch_that_waits_for_more_steps(net: Net, step: Callable[[], None]) -> None:
    with pytest.raises(GradGuardError), watch_gradients(net, steps=5):
        step()
    net.uses_body = True
    with watch_gradients(net, steps=1):
        step()
    assert not hooks()


def test_two_watches_at_once(net: Net, step: Callable[[], None]) -> None:
    """Torch goes through the hooks of a step while they end."""
    net.uses_body = True
    watches = [watch_gradients(net.body, steps=1), watch_gradients(net.head, steps=1)]
    step()
    step()
    assert not any(watch.is_open for watch in watches)
    assert not hooks()


def test_options_hold(net: Net, step: Callable[[], None]) -> None:
    watch_gradients(net, steps=1, allow_none="body.*")
    step()
    watch_gradients(net, steps=1, allow_none=("tail.*", "body.*"))
    with pytest.raises(ValueError, match=r"'tail\.\*' matches no watched name"):
        step()
    assert not hooks()


@pytest.mark.parametrize("steps", [0, -1, 1.5, "2", True])
def test_other_values_are_refused(net: Net, steps: Any) -> None:
    with pytest.raises(TypeError, match=r"steps=.* is not allowed \(allowed: a number of"):
        watch_gradients(net, steps=steps)


def test_the_fixture_fails_the_test_at_its_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import torch

        def test_it(watch_gradients):
            model = torch.nn.Linear(2, 1)
            spare = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD([*model.parameters(), *spare.parameters()], lr=0.1)
            watch = watch_gradients({"model": model, "spare": spare}, steps=1)
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            assert not watch.is_open
            (model(torch.ones(1, 2)) + spare(torch.ones(1, 2))).sum().backward()
    """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    assert "`spare.weight` and `spare.bias`" in result.stdout.str()
