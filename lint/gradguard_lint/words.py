"""Names, written as text."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


def outermost_first(name: str) -> list[str]:
    """The packages around what has the dotted `name`, and that itself, as an import runs them."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
