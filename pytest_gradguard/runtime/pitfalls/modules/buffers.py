"""The buffers of torch modules, and states that show whether their values have changed."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pytest_gradguard.runtime.frameworks.torch import tensors
from pytest_gradguard.runtime.frameworks.torch.copies import sample

_T = TypeVar("_T")

_FEW = 4
"""How many parameters, of the first and last ones, show whether a task trains its copy."""


def kept_by(module: Any) -> Iterable[tuple[str, Any, Any]]:
    """The persistent buffers of `module`: paths, owning modules and buffers."""
    for path, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                yield (f"{path}.{name}" if path else name), owner, buffer


def state_of(owner: Any, buffer: Any) -> Any:
    """A state that shows whether a buffer of the module `owner` has changed its values.

    `batch_norm` writes running statistics without counting that as a change, but torch's modules
    count their batches as well.
    """
    counter = owner._buffers.get("num_batches_tracked")
    if counter is not None and isinstance(owner, _BatchNorm):
        return (int(counter), owner.momentum == 0)
    return sample(buffer)


def parameters_of(module: Any) -> dict[str, Any]:
    """The states of a few trainable parameters, by name."""
    named = {name: one for name, one in module.named_parameters() if one.requires_grad}
    return {name: sample(one) for name, one in few(named).items()}


def few(named: dict[str, _T]) -> dict[str, _T]:
    """The first and last few items."""
    if len(named) <= _FEW:
        return named
    pairs = list(named.items())
    return dict(pairs[: _FEW // 2] + pairs[-_FEW // 2 :])


def text_of(state: Any) -> str:
    """Identifies the state of a buffer or parameter in another process."""
    if isinstance(state, torch.Tensor):
        return blake2b(tensors.fingerprint(state, len(state)) or b"", digest_size=16).hexdigest()
    return str(state)


def same(one: Any, other: Any) -> bool:
    """Whether two states of a buffer or parameter are of the same values."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.allclose(one, other, equal_nan=True))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0] == other[0] or bool(other[1])
    return one is None and other is None
