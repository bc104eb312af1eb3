"""The buffers of torch's modules, and what tells whether they have changed their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_gradguard.runtime.frameworks.torch.copies import sample

_FEW = 4
"""How many parameters, from the first and the last ones, tell whether a task trains its copy."""


def kept_by(module: Any) -> Iterable[tuple[str, Any, Any]]:
    """The buffers that belong to the state of `module`: their paths, their modules, and they."""
    for path, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                yield (f"{path}.{name}" if path else name), owner, buffer


def state_of(owner: Any, buffer: Any) -> Any:
    """What tells whether a buffer of the module `owner` has changed its values.

    `batch_norm` writes running statistics without counting that as a change, but torch's modules
    count their batches beside them.
    """
    counter = owner._buffers.get("num_batches_tracked")
    if counter is not None and isinstance(owner, _BatchNorm):
        return (int(counter), owner.momentum == 0)
    return sample(buffer)


def parameters_of(module: Any) -> dict[str, Any]:
    """What a few of the parameters that are trained are now, by their names."""
    named = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    few = named if len(named) <= _FEW else named[: _FEW // 2] + named[-_FEW // 2 :]
    return {name: sample(one) for name, one in few}


def same(one: Any, other: Any) -> bool:
    """Whether two states of a buffer or parameter are those of the same values."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.allclose(one, other, equal_nan=True))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0] == other[0] or bool(other[1])
    return one is None and other is None
