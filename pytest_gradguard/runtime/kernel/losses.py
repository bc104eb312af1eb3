"""The findings that explain why a tensor lacks its gradient, or a part of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from pytest_gradguard.runtime.kernel import collector
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.evidence import Evidence
from pytest_gradguard.runtime.kernel.references import Reference, refer
from pytest_gradguard.runtime.kernel.state import dropped_at_end


class Loss(NamedTuple):
    """The gradient that one tensor lacks.

    Attributes:
        tensor: the tensor.
        state: its version and its gradient when the loss was detected.
        evidence: the evidence of the finding, which goes to `home`.
        site: where the gradient was requested.
    """

    tensor: Reference
    state: object
    evidence: Evidence
    home: Collector
    site: Site | None


_losses: dict[int, Loss] = dropped_at_end({})
"""The last loss of each live tensor, by its id."""


def record(
    tensors: Iterable[Any], evidence: Evidence, home: Collector, site: Site | None = None
) -> None:
    """Record that `evidence` explains why `tensors` lack a gradient."""
    for tensor in tensors:
        identity = id(tensor)
        forget = None if identity in _losses else functools.partial(_losses.pop, identity, None)
        _losses[identity] = Loss(refer(tensor, forget), _state(tensor), evidence, home, site)


def of(tensor: Any) -> Loss | None:
    """The reported loss of `tensor`; None if its gradient or its values have changed since."""
    known = _losses.get(id(tensor))
    if known is None or known.tensor() is not tensor or known.state != _state(tensor):
        return None
    here = collector.innermost()
    if here is not None and known.home.number < here.number:
        return None  # reported before this test or block began
    return known if known.evidence.count else None


def _state(tensor: Any) -> object:
    """A state that a new gradient, or an optimizer's step, changes in a torch tensor."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not issubclass(type(tensor), torch.Tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        version = None if tensor.is_inference() else tensor._version
        return version, None if gradient is None else (id(gradient), gradient._version)
