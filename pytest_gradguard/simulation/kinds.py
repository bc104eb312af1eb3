"""Operations that GPUs have for other kinds of numbers than the CPU, or not at all.

Which they are is told by torch's own list of operators for its tests, by the types that it names
for CUDA (``torch.testing._internal.common_methods_invocations``).
"""

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
    """Products of matrices: GPUs have none for whole numbers."""
    if len(args) > 1:
        one, other = args[:2]
        if (
            isinstance(other, torch.Tensor)
            and one.dtype is other.dtype
            and _is_whole(one)
            and tags.device_of(one) is not None
            and tags.device_of(one) == tags.device_of(other)
        ):
            raise errors.whole_numbers(one.dim(), other.dim(), one.type())
    return simulation.ordinary(func, args, kwargs)


@handles(torch.addmm, torch.addmv, torch.addbmm, torch.baddbmm)
@handles(_tensor.addmm, _tensor.addmv, _tensor.addbmm, _tensor.baddbmm)
@handles(_tensor.addmm_, _tensor.addmv_, _tensor.addbmm_, _tensor.baddbmm_)
def _product_and_sum(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The same, added to something."""
    if len(args) > 2 and all(isinstance(one, torch.Tensor) for one in args[:3]):
        places = {tags.device_of(one) for one in args[:3]}
        if len(places) == 1 and None not in places and all(map(_is_whole, args[:3])):
            raise errors.whole_numbers(args[1].dim(), args[2].dim(), args[1].type())
    return simulation.ordinary(func, args, kwargs)


@handles(torch.histc, _tensor.histc)
def _histc(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """A histogram of whole numbers: the CPU has none, and GPUs count in the same type."""
    tensor = args[0] if args else kwargs["input"]
    if tags.device_of(tensor) is None or not _is_whole(tensor) or tensor.dtype is torch.bool:
        return simulation.ordinary(func, args, kwargs)
    given = {**dict(zip(("input", "bins", "min", "max"), args, strict=False)), **kwargs}
    given.pop("input", given.pop("self", None))
    out = given.pop("out", None)
    for end in ("min", "max"):
        given[end] = int(given.get(end, 0))
    counted = simulation.ordinary(torch.histc, (tensor.double(),), given).to(tensor.dtype)
    simulation.tag(counted, tags.device_of(tensor))
    return counted if out is None else out.resize_(counted.shape).copy_(counted)


@handles(torch.histogram, _tensor.histogram, torch.histogramdd)
def _histogram(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The other histograms: GPUs have none."""
    tensor = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, torch.Tensor) or tags.device_of(tensor) is None:
        return simulation.ordinary(func, args, kwargs)
    bins = args[1] if len(args) > 1 else kwargs.get("bins")
    if func is torch.histogramdd:
        edges = isinstance(bins, (list, tuple)) and any(isinstance(b, torch.Tensor) for b in bins)
        raise errors.not_on_gpus("_histogramdd_from_bin_tensors" if edges else _EDGES)
    kind = "bins_tensor" if isinstance(bins, torch.Tensor) else "bin_ct"
    raise errors.not_on_gpus(f"histogram.{kind}")


_EDGES = "_histogramdd_bin_edges"


def _is_whole(tensor: Any) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
