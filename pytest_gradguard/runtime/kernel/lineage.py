"""Which process this is, and what a forked one resets.

A forked process has what its parent had at that moment, at the same addresses. Whoever keeps what
belongs to the parent alone has it reset by `in_child`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pytest_gradguard.platforms import HERE

_FIRST = os.getpid()
LINEAGE = f"{_FIRST}-{os.urandom(8).hex()}"
"""Equal in this process and in those forked from it: they share what was imported before."""


def is_forked() -> bool:
    """Whether this process was forked from one that had this module, by whatever forks it."""
    return os.getpid() != _FIRST


_resets: list[Callable[[], object]] = []


def in_child(reset: Callable[[], object]) -> None:
    """Have `reset` called in each process that is forked from this one, as it begins."""
    _resets.append(reset)


def _in_child() -> None:
    for reset in _resets:
        reset()


HERE.at_fork(after_in_child=_in_child)
