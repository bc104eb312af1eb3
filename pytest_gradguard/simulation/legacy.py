"""The old names of tensors by type: ``torch.cuda.FloatTensor`` and its kin."""

from __future__ import annotations

import functools
from typing import Any

import torch

from pytest_gradguard.simulation.replacing import Replacements

_KINDS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


class _Kind(type):
    plain: Any
    is_cuda: bool

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.is_cuda:
            given = (one.cpu() if isinstance(one, torch.Tensor) else one for one in args)
            return cls.plain(*given, **kwargs).cuda()
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].is_cuda:
            raise TypeError(f"expected torch.{cls.__name__} (got {args[0].type()})")
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is cls.plain.dtype
            and instance.is_cuda == cls.is_cuda
            and instance.layout is torch.strided
        )


def install(replaced: Replacements) -> None:
    """Put types in place of tensors on the current GPU, and of those on the CPU alone."""
    for kind in _KINDS:
        name = f"{kind}Tensor"
        plain = getattr(torch, name)
        for owner in (torch.cuda, torch):
            members = {
                "plain": plain,
                "dtype": plain.dtype,
                "layout": torch.strided,
                "is_cuda": owner is torch.cuda,
                "__module__": owner.__name__,
            }
            replaced.put(owner, name, _Kind(name, (), members))
    original = torch.set_default_tensor_type

    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        if name.startswith("torch.cuda."):
            torch.set_default_dtype(getattr(torch, name.rpartition(".")[2]).dtype)
            torch.set_default_device("cuda")
        else:
            original(name)
            torch.set_default_device(None)

    replaced.put(torch, "set_default_tensor_type", set_default_tensor_type)
