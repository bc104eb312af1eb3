"""One file a rule; each is named after its code and found by it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any


@cache
def codes() -> tuple[str, ...]:
    """The codes that have a rule, sorted."""
    return tuple(sorted(
        module.name.upper() for module in pkgutil.iter_modules(__path__)
        if module.name.startswith("gg")
    ))


def rules(selected: Iterable[str]) -> Iterator[Any]:
    """The rules of the `selected` codes, in order of code."""
    wanted = set(selected)
    for code in codes():
        if code in wanted:
            yield importlib.import_module(f"{__name__}.{code.lower()}")
