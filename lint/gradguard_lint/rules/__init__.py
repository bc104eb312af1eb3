"""The rules: a module for each code, and its page of programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any


UNUSED_SUPPRESSION = "GG901"
"""The code for suppression comments, checked after all programs of a run."""


@cache
def program_codes() -> tuple[str, ...]:
    """The codes that have a rule about programs, sorted."""
    names = os.listdir(os.path.dirname(__file__))
    return tuple(
        sorted(
            name[:-3].upper() for name in names if name.startswith("gg") and name.endswith(".py")
        )
    )


def codes() -> tuple[str, ...]:
    """The codes that the linter reports, sorted."""
    return (*program_codes(), UNUSED_SUPPRESSION)


def rules(selected: Iterable[str]) -> Iterator[Any]:
    """The rules of the `selected` codes, in order of code."""
    import importlib

    wanted = set(selected)
    for code in program_codes():
        if code in wanted:
            yield importlib.import_module(f"{__name__}.{code.lower()}")
