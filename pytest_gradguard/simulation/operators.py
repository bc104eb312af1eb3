"""Operators that the program has made: their bodies are its own code, and see where tensors lie."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
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


def call(name: str, func: Any, args: Any, kwargs: Any, outside: Callable[[], Any]) -> Any:
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
