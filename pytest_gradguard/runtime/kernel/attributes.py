"""The attributes of the program's objects, read without running code of their classes."""

from __future__ import annotations

import types
from typing import Any

_ASKED = ("__getattr__", "__getattribute__")


def plain_attribute(item: Any, name: str) -> Any:
    """As `getattr`, or None, without calling a `__getattr__` or `__getattribute__` in Python.

    Those in C are called: of proxies for a function, and of bound methods.
    """
    kind = type(item)
    if not any(
        type(vars(base).get(one)) is types.FunctionType for base in kind.__mro__ for one in _ASKED
    ):
        return getattr(item, name, None)
    get: Any = type.__getattribute__ if issubclass(kind, type) else object.__getattribute__
    try:
        return get(item, name)
    except AttributeError:
        return None
