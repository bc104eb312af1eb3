"""How functions and classes are pickled for a worker: by name, or with their captures.

As by cloudpickle, which joblib, loky and dask use.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from pytest_gradguard.runtime.kernel.code_names import globals_in

PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
"""The classes of values that hold no other objects."""

_CLOUDPICKLE = ("cloudpickle.cloudpickle", "joblib.externals.cloudpickle.cloudpickle")
_FUNCTIONS = 50


def by_name(item: Any) -> bool:
    """Whether a function or class is pickled by its module and name, for the worker to import."""
    module = getattr(item, "__module__", None)
    if module is None or module == "__main__" or _registered(module):
        return False
    found: Any = sys.modules.get(module)
    for part in item.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is item


def _registered(module: str) -> bool:
    """Whether the program registered this module, or a parent package, to be pickled by value."""
    for name in _CLOUDPICKLE:
        registered = getattr(sys.modules.get(name), "_PICKLE_BY_VALUE_MODULES", ())
        if registered and any(f"{module}.".startswith(f"{one}.") for one in registered):
            return True
    return False


def light(function: Any) -> bool:
    """Whether pickling `function` can be ignored, now and later in its call.

    It is pickled by name; or, if by value, it captures only modules and such functions. Plain
    numbers among its globals do not count: they may be replaced at any time.
    """
    queue = [function]
    seen: set[int] = set()
    while queue and len(seen) < _FUNCTIONS:
        current = queue.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if type(current) is not types.FunctionType:
            return False
        if by_name(current):
            continue
        given = (*(current.__defaults__ or ()), *(current.__kwdefaults__ or {}).values())
        if current.__closure__ or current.__dict__ or not PLAIN.issuperset(map(type, given)):
            return False
        annotate = getattr(current, "__annotate__", None)
        if annotate is not None and getattr(annotate, "__closure__", True):
            return False
        for value in _named(current, annotate):
            if type(value) is types.FunctionType:
                queue.append(value)
            elif not _is_importable_by_name(value):
                return False
    return not queue


def _named(function: types.FunctionType, annotate: Any) -> Iterator[Any]:
    """The globals that a function pickled by value takes along, and its annotations.

    Args:
        function: the function.
        annotate: since Python 3.14, computes its annotations. That may fail, so it is left to the
            pickler; the globals that it names stand for them.
    """
    codes = [function.__code__] if annotate is None else [function.__code__, annotate.__code__]
    for name in (name for code in codes for name in globals_in(code).names):
        if name in function.__globals__:
            yield function.__globals__[name]
    for value in function.__annotations__.values() if annotate is None else ():
        if type(value) is not str and value is not None:
            yield value


def _is_importable_by_name(item: Any) -> bool:
    if type(item) is types.ModuleType:
        return sys.modules.get(item.__name__) is item and not _registered(item.__name__)
    return type(item) is types.BuiltinFunctionType or (
        issubclass(type(item), type) and by_name(item)
    )
