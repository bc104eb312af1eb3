"""The order of events, in one count for all frameworks."""

from __future__ import annotations

import itertools

_count = itertools.count(1)


def now() -> int:
    """A number that grows with every event."""
    return next(_count)
