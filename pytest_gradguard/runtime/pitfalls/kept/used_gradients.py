"""GG106: which gradients an optimizer has used already, from a sample of its parameters.

A gradient that no step has used yet is one that the program computed for the next step.
"""

from __future__ import annotations

import weakref
from typing import Any

from pytest_gradguard.runtime.frameworks.torch import steps, tensors
from pytest_gradguard.runtime.frameworks.torch.copies import GradientState, gradient_state
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import dropped_at_end

_SAMPLED = 8
"""How many parameters of an optimizer are sampled after each step."""


class _Used:
    """The gradients of a few parameters after the last step of an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        parameters = steps.parameters_of(optimizer)
        sampled = [*parameters[:: len(parameters) // _SAMPLED + 1], *parameters[-1:]]
        self._gradients: list[tuple[Reference, Reference, GradientState | None]] = [
            (refer(one), refer(gradient), gradient_state(one))
            for one in sampled
            if (gradient := tensors.gradient(one)) is not None
        ]

    def parameters(self) -> list[Any]:
        """The parameters whose gradient the step has used; none if a new gradient came since."""
        optimizer = self._optimizer()
        if optimizer is None or not self._gradients:
            return []
        for reference, used, state in self._gradients:
            parameter, gradient = reference(), used()
            if gradient is None or parameter is None or gradient_state(parameter) != state:
                return []
        return steps.parameters_of(optimizer)


_last: ByIdentity[_Used] = dropped_at_end(ByIdentity())


def ids() -> set[int]:
    """The ids of the parameters whose gradient a step has used already."""
    return {id(one) for used in _last.values() for one in used.parameters()}


def _stepped(optimizer: Any) -> None:
    _last[optimizer] = _Used(optimizer)


def apply() -> None:
    """Record the gradients that optimizers use."""
    steps.after.subscribe(_stepped)
