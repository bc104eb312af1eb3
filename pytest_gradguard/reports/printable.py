"""What a terminal would obey is shown instead: file names and source lines are not trusted."""

from __future__ import annotations

import re

__all__ = ["shown", "shown_lines"]

_OBEYED = (
    "[\x00-\x1f\x7f-\x9f"  # control characters: escape sequences, newlines, tabs
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of text
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff"  # bytes of a file name that are not UTF-8
    "\U000e0000-\U000e007f]"  # invisible tags
)


def shown(text: str) -> str:
    """`text` with everything but visible characters and spaces written as Python escapes it.

    Each character is replaced for itself, so that ``len(shown(line[:n]))`` is where the character
    at `n` begins in ``shown(line)``.
    """
    return text if text.isascii() and text.isprintable() else re.sub(_OBEYED, _escape, text)


def shown_lines(text: str) -> str:
    """`text` line by line as `shown` writes it: its newlines stay."""
    return "\n".join(map(shown, text.split("\n")))


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if "\udc80" <= character <= "\udcff":  # how Python keeps a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
