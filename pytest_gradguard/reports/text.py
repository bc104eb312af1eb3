"""Findings for people: the place, the code, the chain, what happens, what to do.

One layout, used by lint, the terminal summary of pytest, `gradguard run`, notebooks and exceptions.
"""

from __future__ import annotations

import linecache
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pytest_gradguard.findings import Finding, Repair, display_place
from pytest_gradguard.reports.overview import explanations, folded
from pytest_gradguard.reports.printable import shown
from pytest_gradguard.reports.repairs import hunks

Style = Callable[[str, str], str]
"""``style(role, text)`` returns `text` marked up for `role`, one of ``error``, ``warning``,
``info``, ``strong``, ``dim``, ``removed``, ``added``, ``text``."""

SourceLine = Callable[[str, int], str]
"""``source_line(path, line)`` returns that line of source, or an empty string."""

_WIDTH = 100
_NARROWEST, _WIDEST = 40, 120
_ANSI = {
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "strong": "1",
    "dim": "2",
    "removed": "31",
    "added": "32",
}


def plain(role: str, text: str) -> str:
    """No markup at all."""
    return text


def ansi(role: str, text: str) -> str:
    """Markup for a colour terminal."""
    return f"\x1b[{_ANSI[role]}m{text}\x1b[0m" if text and role in _ANSI else text


def style_for(stream: Any, colour: str = "auto") -> Style:
    """How to write on `stream`.

    Args:
        stream: standard output or standard error; None for what goes elsewhere.
        colour: ``always``, ``never``, or ``auto``: not where NO_COLOR is set, else where
            FORCE_COLOR is, else on a terminal that knows colours.
    """
    if colour != "auto":
        return ansi if colour == "always" else plain
    if stream is None or os.environ.get("NO_COLOR"):
        return plain
    knows = _is_terminal(stream) and os.environ.get("TERM") != "dumb"
    return ansi if knows or os.environ.get("FORCE_COLOR") else plain


def width_of(stream: Any) -> int | None:
    """The columns of `stream` (by COLUMNS, or of its terminal), or None where there is no limit."""
    if stream is None:
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    if not _is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no file at all, or a closed one
        return False


def blocks(
    findings: Iterable[Finding],
    *,
    style: Style = plain,
    source_line: SourceLine = linecache.getline,
    width: int | None = None,
    unsafe: bool = False,
) -> Iterator[str]:
    """The lines that show all `findings`, with an empty one between two.

    What explains another of them stands in its block, on a line of its own.

    Args:
        findings: in the order in which they are shown.
        style: the markup.
        source_line: where the lines of source come from.
        width: the columns of the terminal, where it is known (`width_of`).
        unsafe: whether unsafe repairs are made, too.
    """
    for number, (finding, because) in enumerate(folded(findings)):
        if number:
            yield ""
        yield from render(
            finding, because, style=style, source_line=source_line, width=width, unsafe=unsafe
        )


def render(
    finding: Finding,
    because: Sequence[Finding] = (),
    *,
    style: Style = plain,
    source_line: SourceLine = linecache.getline,
    width: int | None = None,
    unsafe: bool = False,
) -> Iterator[str]:
    """The lines that show one finding, without line ends; `because` are those that explain it."""
    where = finding.location
    severity = finding.severity.label
    repair = finding.edits
    star = "[*] " if repair is not None and (unsafe or repair.is_safe) else ""
    head = style(severity, f"{severity}[{finding.code}]") + " " + star
    head += style("strong", finding.name)
    yield head + (style("dim", f" ({finding.count} times)") if finding.count > 1 else "")
    place = shown(finding.place)
    if where.function:
        place += f" in {shown(where.function)}"
    gutter = len(str(where.end_line or where.line))
    hanging = " " * (gutter + 3)
    columns = max(_NARROWEST, min(width or _WIDTH, _WIDEST))

    def paragraph(margin: str, text: str, label: str = "") -> Iterator[str]:
        indent = " " * len(margin)
        wrapped = textwrap.wrap(
            label + shown(text),
            columns - len(margin),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(wrapped):
            if number:
                yield indent + style("text", line)
            else:
                named = style("strong", label.strip()) + style("text", line[len(label.strip()) :])
                yield style("dim", margin) + named

    yield from paragraph(" " * gutter + "--> ", place)
    yield from _frame(finding, gutter, style, source_line, width)
    equals = " " * gutter + " = "
    yield from paragraph(equals, finding.message)
    told = {(other.location.file, other.location.line) for other in because}
    for step in finding.trace:
        if finding.origin == "lint" or (step.file, step.line) not in told:
            text = f"{display_place(step.file, step.line)}: {step.message}"
            yield from paragraph(hanging + "- ", text)
    for _, text in explanations(finding, because):
        yield from paragraph(hanging + "- ", text)
    if finding.fix:
        yield from paragraph(equals, finding.fix, "fix: ")
    if repair is not None:
        said = repair.message if repair.is_safe else f"{repair.message} (unsafe)"
        yield from paragraph(equals, said, "repair: ")
        yield from _changes(finding, repair, gutter, style, source_line)


def _frame(
    finding: Finding, gutter: int, style: Style, source_line: SourceLine, width: int | None
) -> Iterator[str]:
    """The source of the place, with the reported part underlined."""
    where = finding.location
    raw = source_line(where.file, where.line).rstrip("\r\n")
    text = _columns(raw)
    if not text.strip():
        return
    start = len(_columns(raw[: where.column - 1]))
    if where.end_column is not None and (where.end_line or where.line) == where.line:
        stop = len(_columns(raw[: where.end_column - 1]))
    else:
        stop = len(text)
    if where.end_column is None and where.column == 1:
        start = len(text) - len(text.lstrip())
    if width is not None:
        text, start, stop = _cropped(text, start, stop, max(_NARROWEST, width) - gutter - 3)
    more = " ..." if (where.end_line or where.line) > where.line else ""
    marks = "^" * max(1, min(stop, len(text)) - start) + more
    bar = style("dim", " " * gutter + " |")
    yield bar
    yield style("dim", f"{where.line:>{gutter}} |") + " " + style("text", text)
    yield bar + " " * (start + 1) + style(finding.severity.label, marks)


def _changes(
    finding: Finding, repair: Repair, gutter: int, style: Style, source_line: SourceLine
) -> Iterator[str]:
    """The lines that the repair changes, before and after."""
    file = finding.location.file
    for hunk in hunks(repair, source_line):
        if hunk.file != file:
            file = hunk.file
            yield style("dim", " " * gutter + "::: " + shown(display_place(file, hunk.line)))
        for number, line in enumerate(hunk.old, hunk.line):
            yield style("dim", f"{number:>{gutter}} ") + style("removed", f"- {_columns(line)}")
        for number, line in enumerate(hunk.new, hunk.line):
            yield style("dim", f"{number:>{gutter}} ") + style("added", f"+ {_columns(line)}")


def _columns(text: str) -> str:
    return shown(text.expandtabs(4))


def _cropped(text: str, start: int, stop: int, room: int) -> tuple[str, int, int]:
    """The part of a line of source that fits, and where its columns are then."""
    if len(text) <= room:
        return text, start, stop
    first = 0 if stop < room else max(0, min(start - 1, len(text) - room))
    last = first + room
    before, after = "…" if first else "", "…" if last < len(text) else ""
    cropped = before + text[first + len(before) : last - len(after)] + after
    return cropped, max(start, first) - first, min(stop, last) - first
