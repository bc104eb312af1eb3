"""What `Parallel` refuses, in one line that names it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class UnsupportedGradientError(RuntimeError):
    """The gradients of a task would not be those of the same program in one process."""


def name_of(function: Any) -> str:
    """How the user calls a task's function."""
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


def parameters(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call, each under the name that the function gives it."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    if getattr(function, "__func__", None) is not None:
        names = names[1:]
    names += [f"args[{index}]" for index in range(len(names), len(args))]
    return [*zip(names, args, strict=False), *kwargs.items(), ("", function)]
