"""Parameters sketched in few numbers, by which ranks detect differences and their size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pytest_gradguard.runtime.frameworks.torch.tensors import readable

_MOST = 512
"""How many numbers represent one parameter; a larger one is folded."""
_ROUNDING = 8
"""Relative differences below this many roundings do not count, after one step."""
_KINDS = (torch.nn.Parameter, torch.Tensor)
"""Exact types: subclasses may hold only a part (DTensor), or compute differently."""


class Form(NamedTuple):
    """How a parameter is sketched.

    Attributes:
        length: the count of numbers.
        exact: they are the parameter's own numbers; otherwise sums of some of them.
        rounding: the smallest relative difference of two numbers of its type.
    """

    length: int
    exact: bool
    rounding: float


class Difference(NamedTuple):
    """How far a parameter is from that of another rank.

    Attributes:
        which: the parameter, by its index.
        size: the largest difference of two numbers.
        exact: see `Form`.
    """

    which: int
    size: float
    exact: bool


def is_comparable(parameter: Any) -> bool:
    """Whether `parameter` has floating-point values of its own."""
    return (
        type(parameter) in _KINDS
        and parameter.layout is torch.strided
        and not parameter.is_meta
        and parameter.numel() > 0
        and (parameter.is_floating_point() or parameter.is_complex())
    )


def are_readable(parameters: Sequence[Any]) -> bool:
    """Whether the values may be read now: not during CUDA graph capture."""
    return not torch.compiler.is_compiling() and all(map(readable, parameters))


def form(parameter: Any) -> Form:
    """How `parameter` is sketched."""
    numbers = int(parameter.numel()) * (2 if parameter.is_complex() else 1)
    return Form(min(_MOST, numbers), numbers <= _MOST, torch.finfo(parameter.dtype).eps)


def sketch(parameters: Sequence[Any]) -> Any:
    """Sketch all of `parameters`; equal parameters have equal sketches."""
    with _disable_current_modes(), torch.no_grad():
        return torch.cat([_folded(one).to("cpu") for one in parameters]).double()


def _folded(parameter: Any) -> Any:
    values = parameter.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    flat = values.reshape(-1)
    if flat.dtype.itemsize < 4:
        flat = flat.float()
    if len(flat) <= _MOST:
        return flat
    folds, rest = divmod(len(flat), _MOST)
    weights = _weights(folds, flat.dtype, flat.device)
    folded = weights @ flat[: folds * _MOST].view(folds, _MOST)
    if rest:
        folded[:rest] += flat[folds * _MOST :]
    return folded


@lru_cache(maxsize=64)
def _weights(folds: int, dtype: Any, device: Any) -> Any:
    """A weight for each fold: the gradients of some layers sum to zero over rows."""
    return torch.arange(1, folds + 1, dtype=dtype, device=device).cos()


def differences(forms: Sequence[Form], mine: Any, other: Any, steps: int) -> list[Difference]:
    """Which parameters differ between two sketches, beyond rounding, after so many steps."""
    found = []
    with _disable_current_modes(), torch.no_grad():
        if torch.equal(mine, other):
            return []
        lengths = [one.length for one in forms]
        pairs = zip(mine.split(lengths), other.split(lengths), strict=True)
        for index, (one, two) in enumerate(pairs):
            same = (one == two) | (one.isnan() & two.isnan())
            apart = torch.where(same, 0.0, (one - two).abs()).nan_to_num(nan=float("inf"))
            scale = torch.maximum(one.abs(), two.abs()).nan_to_num(0.0, 0.0, 0.0).max()
            rounding = _ROUNDING * forms[index].rounding * max(steps, 1) ** 0.5
            if apart.max() > rounding * scale:
                found.append(Difference(index, float(apart.max()), forms[index].exact))
    return found
