"""What the program has added to torch: operators of its own, and tensors with rules of their own.

The body of such an operator is the program's code, and sees where tensors lie. A class with rules
sees to the functions that get its tensors: one may stand for something that is made where it is
needed, a mask by its sizes say, so that where it lies itself says nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from inspect import getattr_static
from typing import Any

import torch

from pytest_gradguard.simulation.errors import CannotSimulate

_KINDS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OF_TORCH = ("aten::", "prims::", "prim::", "quantized::", "_c10d_functional::", "profiler::")


def made_by_program(func: Any) -> str | None:
    """The name of an operator of the program's; None: `func` is something else."""
    if type(func) not in _KINDS:
        return None
    name: str = func._qualified_op_name if isinstance(func, _KINDS[1]) else str(func._schema.name)
    return None if name.startswith(_OF_TORCH) else name


def run_operator(name: str, func: Any, args: Any, kwargs: Any, outside: Callable[[], Any]) -> Any:
    """Call an operator, its body in a block that `outside` makes.

    Raises:
        CannotSimulate: it has a body for CUDA alone.
    """
    known = sys.modules.get("torch._library.custom_ops")
    operator = None if known is None else known.OPDEFS.get(name)
    before = None if operator is None else operator._backend_fns

    def seeing(body: Any) -> Any:
        @functools.wraps(body)
        def run(*given: Any, **named: Any) -> Any:
            with outside():
                return body(*given, **named)

        return run

    if operator is not None and before is not None:
        operator._backend_fns = {kind: seeing(body) for kind, body in before.items()}
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        if not str(error).startswith(f"Could not run '{name}'"):
            raise
    finally:
        if operator is not None:
            operator._backend_fns = before
    raise CannotSimulate(f"{name}, an operator for CUDA only")


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NAME = "__torch_function__"
_ORDINARY = frozenset((getattr_static(torch.Tensor, _NAME), torch._C._disabled_torch_function_impl))
"""The rules of tensors themselves, and those of a class without any."""


def with_rules(tensors: list[Any]) -> tuple[Any, ...]:
    """The classes of `tensors` that have rules of their own, and have not been asked yet."""
    if not torch._C._is_torch_function_enabled():
        return ()
    classes = dict.fromkeys(kind for kind in map(type, tensors) if kind not in _PLAIN)
    return tuple(kind for kind in classes if getattr_static(kind, _NAME) not in _ORDINARY)


def by_rules(kinds: tuple[Any, ...], func: Any, args: Any, kwargs: Any) -> Any:
    """What the rules of the first of `kinds` that has one for `func` give, else NotImplemented."""
    for kind in kinds:
        result = kind.__torch_function__(func, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    return NotImplemented
