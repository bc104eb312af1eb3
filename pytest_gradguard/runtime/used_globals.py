"""The globals that a task's function names, through the user's own functions that it calls."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime import callsite, locate

_DEPTH = 4


def used_globals(function: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of the globals that `function` and its helpers use, each once.

    Functions of installed packages are not looked into.
    """
    seen: set[int] = set()
    waiting = [(one, 0) for one in _functions(function)]
    while waiting:
        current, depth = waiting.pop()
        if id(current) in seen or not callsite.is_user_file(current.__code__.co_filename):
            continue
        seen.add(id(current))
        for name in locate.global_names(current.__code__):
            if name not in current.__globals__:
                continue
            value = current.__globals__[name]
            inner = list(_functions(value)) if depth < _DEPTH else []
            waiting += [(one, depth + 1) for one in inner]
            if not inner and not isinstance(value, (types.ModuleType, type)):
                yield name, value


def _functions(item: Any) -> Iterator[types.FunctionType]:
    """The plain functions behind a callable; none where it is something else."""
    for _ in range(20):
        if isinstance(item, functools.partial):
            item = item.func
        elif isinstance(item, types.MethodType):
            item = item.__func__
        elif isinstance(item, (type, types.FunctionType, types.BuiltinFunctionType)):
            break
        else:
            item = vars(type(item)).get("__call__")
    if isinstance(item, types.FunctionType):
        yield item
        wrapped = getattr(item, "__wrapped__", None)
        if wrapped is not None and wrapped is not item:
            yield from _functions(wrapped)
