"""Numbers and tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["counted", "table"]


def counted(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table, its columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
