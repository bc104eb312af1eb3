"""The source around the places of a finding: a few lines each, with what to look at marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pytest_gradguard.findings import Finding, display_place

__all__ = ["Excerpt", "Row", "excerpts"]

_AROUND = 2
"""How many lines are shown before and after a place."""
_LONGEST = 400
"""How much of a line is shown: minified files have lines of megabytes."""


class Row(NamedTuple):
    """One line of source: its number, what is `marked` in it, and what is said of it."""

    line: int
    before: str
    marked: str
    after: str
    notes: tuple[str, ...]
    is_place: bool


class Excerpt(NamedTuple):
    """Neighbouring lines of one file."""

    place: str
    rows: tuple[Row, ...]


def excerpts(finding: Finding, source_line: Callable[[str, int], str]) -> Iterator[Excerpt]:
    """The source of `finding` and of its steps, that of its own file first.

    Args:
        finding: what was found.
        source_line: the line of a file, as it is now; an empty string where there is none.
    """
    where = finding.location
    notes: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    last = min(where.end_line or where.line, where.line + 3 * _AROUND)
    for line in range(where.line, last + 1):
        notes[where.file][line] = []
    for step in finding.trace:
        notes[step.file][step.line].append(step.message)
    for file, of_file in notes.items():
        for first, end in _windows(sorted(of_file)):
            lines = {n: _cut(source_line(file, n)) for n in range(first, end + 1)}
            while lines and not lines[max(lines)].strip():
                del lines[max(lines)]
            while lines and not lines[min(lines)].strip():
                del lines[min(lines)]
            if not lines:
                continue
            own = [n for n in of_file if first <= n <= end]
            rows = (_row(finding, file, n, text, of_file) for n, text in lines.items())
            yield Excerpt(display_place(file, min(own)), tuple(rows))


def _windows(lines: list[int]) -> Iterator[tuple[int, int]]:
    first = end = None
    for line in lines:
        if first is None or end is None:
            first = max(1, line - _AROUND)
        elif line - _AROUND > end + 1:
            yield first, end
            first = line - _AROUND
        end = line + _AROUND
    if first is not None and end is not None:
        yield first, end


def _cut(text: str) -> str:
    text = text.rstrip("\r\n")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _row(finding: Finding, file: str, line: int, text: str, notes: dict[int, list[str]]) -> Row:
    where = finding.location
    end_line = where.end_line or where.line
    said = tuple(dict.fromkeys(notes.get(line, ())))
    if file != where.file or not where.line <= line <= end_line:
        return Row(line, text.expandtabs(4), "", "", said, False)
    indent = len(text) - len(text.lstrip())
    start = where.column - 1 if line == where.line else indent
    stop = len(text)
    if line == end_line and where.end_column is not None:
        stop = where.end_column - 1
    if where.end_column is None and where.column == 1:
        start = indent
    start, stop = (len(text[:column].expandtabs(4)) for column in (start, stop))
    text = text.expandtabs(4)
    return Row(line, text[:start], text[start:stop], text[stop:], said, True)
