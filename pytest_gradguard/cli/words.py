"""Numbers and tables, as a command takes and prints them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

__all__ = ["at_least_one", "counted", "table"]


def at_least_one(text: str) -> int:
    """The number that an option is given.

    Raises:
        argparse.ArgumentTypeError: `text` is not a whole number of at least 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)


def counted(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table, its columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
