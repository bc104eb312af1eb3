"""Autocast on GPUs: which types its operations work in, from PyTorch's list for CUDA.

The operations that autocast runs in the lower type are those of the CPU's autocast, which does it.
The others differ: those are cast here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_gradguard.simulation import tags

_FLOAT32 = frozenset(
    {
        *("__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin", "cosh", "cdist"),
        *("binary_cross_entropy_with_logits", "cosine_embedding_loss", "cosine_similarity"),
        *("cross_entropy", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm"),
        *("hinge_embedding_loss", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p"),
        *("log2", "log_softmax", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "pow"),
        *("multilabel_margin_loss", "nll_loss", "norm", "normalize", "pdist", "poisson_nll_loss"),
        *("prod", "reciprocal", "renorm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss"),
        *("softmax", "softmin", "softplus", "sum", "tan", "triplet_margin_loss", "huber_loss"),
    }
)
"""Functions that work in float32."""

_WIDEST = frozenset(
    {
        *("addcdiv", "addcmul", "atan2", "bilinear", "cat", "concat", "cross", "dot", "stack"),
        *("grid_sample", "index_put", "scatter_add", "tensordot", "vdot"),
    }
)
"""Functions that work in the widest type of their tensors."""

_LOW = (torch.float16, torch.bfloat16)
_UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call `func`, which works on a GPU, as autocast for GPUs says: on, or off.

    Raises:
        RuntimeError: autocast is on, and refuses this function.
    """
    try:
        return _as_it_says(func, args, kwargs)
    except RuntimeError as error:
        if not any(reason in str(error) for reason in _UNKNOWN_TO_CPU):
            raise
        low = _low_type(args, kwargs)
        if low is None or func.__name__.endswith("_") or "out" in kwargs:
            raise
    with _on_cpu(False):
        return _in_type(low, func(*_wide(args), **_wide(kwargs)))


def _as_it_says(func: Any, args: Any, kwargs: Any) -> Any:
    on_gpu = torch.is_autocast_enabled("cuda")
    if not on_gpu and not torch.is_autocast_enabled("cpu"):
        return func(*args, **kwargs)
    if not on_gpu:
        with _on_cpu(False):
            return func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    if name == "binary_cross_entropy":
        raise RuntimeError(_UNSAFE)
    if name in _FLOAT32 or (name in _WIDEST and _has_float32(args, kwargs)):
        with _on_cpu(False):
            return func(*_wide(args), **_wide(kwargs))
    with _on_cpu(True):
        return func(*args, **kwargs)


_UNKNOWN_TO_CPU = ("not implemented for 'Half'", "not implemented for 'BFloat16'", "primitive")
"""What the CPU says where it cannot work in a type in which GPUs can."""


def _low_type(args: Any, kwargs: Any) -> torch.dtype | None:
    """The type of less than float32 in which a function was to work."""
    for tensor in tags.tensors_in(args) + tags.tensors_in(kwargs.values()):
        if tensor.dtype in _LOW:
            return tensor.dtype
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return None


def _in_type(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype is torch.float32 else value
    if type(value) in (list, tuple):
        return type(value)(_in_type(dtype, one) for one in value)
    return value


@contextmanager
def _on_cpu(enabled: bool) -> Iterator[None]:
    before = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


def _has_float32(args: Any, kwargs: Any) -> bool:
    return any(
        tensor.dtype is torch.float32
        for tensor in tags.tensors_in(args) + tags.tensors_in(kwargs.values())
    )


def _wide(value: Any) -> Any:
    """`value` with its tensors of a lower type in float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _LOW else value
    if type(value) in (list, tuple):
        return type(value)(_wide(one) for one in value)
    if type(value) is dict:
        return {key: _wide(one) for key, one in value.items()}
    return value
