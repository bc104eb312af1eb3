"""Patterns that are tried only where their literal stands: a plain search is many times as fast;
and the words of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator


def matches(data: bytes, literals: tuple[bytes, ...], pattern: bytes) -> Iterator[re.Match[bytes]]:
    """Each match of `pattern` that begins with one of `literals`."""
    match = None
    for literal in literals:
        place = data.find(literal)
        while place >= 0:
            match = match or re.compile(pattern).match
            found = match(data, place)
            if found is not None:
                yield found
            place = data.find(literal, place + len(literal))


def has(data: bytes, literals: tuple[bytes, ...], pattern: bytes) -> bool:
    """Whether there is such a match."""
    return any(True for _ in matches(data, literals, pattern))


def words_of(data: bytes) -> set[bytes]:
    """The names and numbers in `data`: what ``\\w+`` finds, in a tenth of the time."""
    return set(data.translate(_APART).split())


_APART = bytes(
    byte if chr(byte).isascii() and re.match(r"\w", chr(byte)) else 32 for byte in range(256)
)
"""What is no part of a word, as a space."""
