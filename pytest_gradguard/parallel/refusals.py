"""The error for unsupported tasks, and the names in its messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class UnsupportedGradientError(RuntimeError):
    """The gradients of a task would differ from those of one process."""


def name_of(function: Any) -> str:
    """The name of a task's function in the user's code."""
    inner = function
    while not hasattr(inner, "__qualname__") and hasattr(inner, "func"):
        inner = inner.func  # a functools.partial
    name = getattr(inner, "__qualname__", type(inner).__name__)
    return str(name).rpartition("<locals>.")[2]


def path_to(wanted: Any, roots: Iterable[tuple[str, Any]]) -> str:
    """The path of one object under `roots`, such as ``net.head.weight``."""
    from pytest_gradguard.runtime.kernel import locate

    found = locate.find(roots, lambda item: item is wanted)
    return found.get(id(wanted), "a tensor")


def named_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call with their parameter names, and the function."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    if getattr(function, "__func__", None) is not None:
        names = names[1:]
    names += [f"args[{index}]" for index in range(len(names), len(args))]
    return [*zip(names, args, strict=False), *kwargs.items(), ("", function)]
