"""Which process this is, to be compared with others.

A forked process has what its parent had at that moment, at the same addresses.
"""

from __future__ import annotations

import os

_FIRST = os.getpid()
LINEAGE = f"{_FIRST}-{os.urandom(8).hex()}"
"""Equal in this process and in those forked from it: they share what was imported before."""


def is_forked() -> bool:
    """Whether this process was forked from one that had this module, by whatever forks it."""
    return os.getpid() != _FIRST
