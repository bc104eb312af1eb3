"""Which files are too large for repairs: data that a program wrote, as a rule."""

from __future__ import annotations

LARGEST = 512 * 1024
"""Up to this many bytes; libcst reads some 100 KB a second."""

LONGEST = 20_000
"""Up to this many bytes in one line."""


def too_large(data: bytes) -> str:
    """Why no repair is looked for in a file; "" where it is."""
    if len(data) > LARGEST:
        return f"it is larger than {LARGEST // 1024} KiB"
    if len(data) > LONGEST and max(map(len, data.splitlines())) > LONGEST:
        return f"it has a line of more than {LONGEST} bytes"
    return ""
