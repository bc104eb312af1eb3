"""Whose code runs: the program's, or that of a package that starts workers, computes or tests.

Integrations and frameworks declare their packages here.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

_transparent = {"pytest_gradguard", "asyncio", "contextlib"}
_own_business = {"_pytest", "execnet", "xdist"}
"""Initially the test runners: workers that they start are none of the program's."""


def declare(names: Iterable[str], *, transparent: bool = False) -> None:
    """Declare the packages or modules `names`, and all below them, as machinery.

    Their frames are never shown as the user's line.

    Args:
        names: dotted names.
        transparent: work that they give to workers of another kind is the program's; otherwise it
            is their own.
    """
    (_transparent if transparent else _own_business).update(names)
    for function in _cached:
        function.cache_clear()


_P = ParamSpec("_P")
_R = TypeVar("_R")
_cached: list[Any] = []


def cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Cache the results of `function` until another package is declared."""
    remembering: Any = functools.lru_cache(maxsize=5_000)(function)
    _cached.append(remembering)
    return remembering  # type: ignore[no-any-return]


def around(function: Any) -> frozenset[str]:
    """The declared package that contains `function`, through which the program reaches it."""
    name = str(getattr(function, "__module__", None) or "")
    while name:
        if name in _transparent or name in _own_business:
            return frozenset((name,))
        name = name.rpartition(".")[0]
    return frozenset()


@cached
def is_program(module: str, passed: frozenset[str]) -> bool | None:
    """Whether `module` is the program's; None: it is between the program and its workers.

    Args:
        module: its dotted name.
        passed: packages through which the program reaches these workers.
    """
    name = module
    while name:
        if name in passed or name in _transparent:
            return None
        if name in _own_business:
            return False
        name = name.rpartition(".")[0]
    return True


def is_machinery(filename: str) -> bool:
    """Whether the code in that file belongs to a declared package."""
    for name in _transparent | _own_business:
        module = sys.modules.get(name)
        for place in getattr(module, "__path__", None) or ():
            if filename.startswith(os.path.abspath(place) + os.sep):
                return True
        if filename == getattr(module, "__file__", None):
            return True
    return False
