"""Products of matrices: GPUs have none for whole numbers."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gradguard.simulation import errors, tags
from pytest_gradguard.simulation.mode import Simulation, handles

_tensor: Any = torch.Tensor


@handles(
    *(torch.mm, torch.matmul, torch.bmm, torch.mv, torch.dot, torch._C._nn.linear),
    *(_tensor.mm, _tensor.matmul, _tensor.__matmul__, _tensor.bmm, _tensor.mv, _tensor.dot),
)
def _product(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) > 1:
        one, other = args[:2]
        if (
            isinstance(other, torch.Tensor)
            and one.dtype is other.dtype
            and not (one.is_floating_point() or one.is_complex())
            and tags.device_of(one) is not None
            and tags.device_of(one) == tags.device_of(other)
        ):
            raise errors.whole_numbers(one.dim(), other.dim(), one.type())
    return simulation.ordinary(func, args, kwargs)
