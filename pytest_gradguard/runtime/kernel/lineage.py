"""The identity of this process, and resets in forked ones.

A forked process has its parent's objects at the same addresses. Whatever belongs only to the parent
is reset by `in_child`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pytest_gradguard.platforms import HERE

_FIRST = os.getpid()
LINEAGE = f"{_FIRST}-{os.urandom(8).hex()}"
"""Equal in this process and in those forked from it: they share earlier imports."""


def is_forked() -> bool:
    """Whether this process was forked, by any means, from one that had this module."""
    return os.getpid() != _FIRST


_resets: list[Callable[[], object]] = []


def in_child(reset: Callable[[], object]) -> None:
    """Call `reset` in each process that is forked from this one, as it begins."""
    _resets.append(reset)


def _in_child() -> None:
    for reset in _resets:
        reset()


HERE.at_fork(after_in_child=_in_child)
