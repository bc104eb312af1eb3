"""The old names of tensors by type: ``torch.cuda.FloatTensor`` and its kin."""

from __future__ import annotations

import functools
from typing import Any

import torch

from pytest_gradguard.simulation.replacing import Replacements

_KINDS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


class _Kind(type):
    plain: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.plain(*args, **kwargs).cuda()

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.is_cuda
            and instance.dtype is cls.plain.dtype
        )


def install(replaced: Replacements) -> None:
    """Put types in place that make tensors on the current GPU."""
    for kind in _KINDS:
        name = f"{kind}Tensor"
        plain = getattr(torch, name)
        members = {
            "plain": plain,
            "dtype": plain.dtype,
            "is_cuda": True,
            "__module__": "torch.cuda",
        }
        replaced.put(torch.cuda, name, _Kind(name, (), members))
    original = torch.set_default_tensor_type

    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        if name.startswith("torch.cuda."):
            torch.set_default_dtype(getattr(torch, name.rpartition(".")[2]).dtype)
            torch.set_default_device("cuda")
        else:
            original(t)
            torch.set_default_device(None)

    replaced.put(torch, "set_default_tensor_type", set_default_tensor_type)
