"""Random networks: right gradients are called right, and planted faults are found."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import networks  # noqa: E402  # it needs torch

from pytest_gradguard.checking import torch_state  # noqa: E402

SEEDS = (0, 2, 3, 5, 8, 14)
"""Each kind of network: words with a padding row and tied weights, convolutions, recurrent ones."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_gradient_is_called_right(seed: int) -> None:
    network, closure = networks.problem(seed)
    assert networks.named_by(network, closure) == set()


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_in_the_programs_own_precision(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_state.State, "may_cast", lambda self: False)
    network, closure = networks.problem(seed)
    assert networks.named_by(network, closure) == set()
    name = networks.target(network, closure, seed)
    with networks.spoiled(dict(network.named_parameters())[name], "sign"):
        assert networks.named_by(network, closure) == {name}


@pytest.mark.parametrize("fault", networks.FAULTS)
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_planted_fault_is_found(seed: int, fault: str) -> None:
    network, closure = networks.problem(seed)
    name = networks.target(network, closure, seed)
    with networks.spoiled(dict(network.named_parameters())[name], fault):
        assert networks.named_by(network, closure) == {name}
