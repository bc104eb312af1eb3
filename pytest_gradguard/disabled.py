"""``GRADGUARD_DISABLE=1`` in the environment turns all of gradguard's watching off."""

from __future__ import annotations

import os

VARIABLE = "GRADGUARD_DISABLE"
NOTHING = f"nothing ({VARIABLE} is set)"
"""What a run was guarded in while it is off, as reports say it."""
_NO = frozenset(("", "0", "false", "no", "off"))


def is_disabled() -> bool:
    """Whether the environment turns gradguard off: for this process, and those that it starts."""
    return os.environ.get(VARIABLE, "").strip().lower() not in _NO
