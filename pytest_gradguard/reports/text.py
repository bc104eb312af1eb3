"""Findings for people: the place, the code, the chain, what happens, what to do.

One layout, used by lint, the terminal summary of pytest, `gradguard run` and exceptions.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator

from pytest_gradguard.findings import Finding, display_path

Style = Callable[[str, str], str]
"""``style(role, text)`` returns `text` marked up for `role`, one of ``error``, ``warning``,
``info``, ``strong``, ``dim``."""

SourceLine = Callable[[str, int], str]
"""``source_line(path, line)`` returns that line of source, or an empty string."""

_ANSI = {"error": "1;31", "warning": "1;33", "info": "1;36", "strong": "1", "dim": "2"}


def plain(role: str, text: str) -> str:
    """No markup at all."""
    return text


def ansi(role: str, text: str) -> str:
    """Markup for a colour terminal."""
    return f"\x1b[{_ANSI[role]}m{text}\x1b[0m" if text else text


def render(
    finding: Finding, *, style: Style = plain, source_line: SourceLine = linecache.getline
) -> Iterator[str]:
    """The lines that show one finding, without line ends."""
    where = finding.location
    severity = finding.severity.label
    head = style(severity, f"{severity}[{finding.code}]") + " " + style("strong", finding.name)
    if finding.count > 1:
        head += style("dim", f" ({finding.count} times)")
    yield head
    place = f"{display_path(where.path)}:{where.line}:{where.column}"
    if where.function:
        place += f" in {where.function}"
    last_line = where.end_line or where.line
    gutter = len(str(last_line))
    yield style("dim", " " * gutter + "--> ") + place
    yield from _frame(finding, gutter, style, source_line)
    margin = style("dim", " " * gutter + " = ")
    yield margin + finding.message
    if finding.trace:
        yield margin + style("strong", "how it got here:")
        for step in finding.trace:
            yield " " * (gutter + 5) + f"{display_path(step.path)}:{step.line}: {step.message}"
    if finding.fix:
        yield margin + style("strong", "fix: ") + finding.fix


def _frame(finding: Finding, gutter: int, style: Style, source_line: SourceLine) -> Iterator[str]:
    """The source of the place, with the reported part underlined."""
    where = finding.location
    raw = source_line(where.path, where.line).rstrip("\n")
    text = raw.expandtabs(4)
    if not text.strip():
        return
    bar = style("dim", " |")
    yield " " * gutter + bar
    yield style("dim", f"{where.line:>{gutter}} |") + " " + text
    start = len(raw[: where.column - 1].expandtabs(4))
    if where.end_column is not None and (where.end_line or where.line) == where.line:
        stop = len(raw[: where.end_column - 1].expandtabs(4))
    else:
        stop = len(text)
    if where.end_column is None and where.column == 1:
        start = len(text) - len(text.lstrip())
    width = max(1, min(stop, len(text)) - start)
    more = " ..." if (where.end_line or where.line) > where.line else ""
    yield " " * gutter + bar + " " + " " * start + style(finding.severity.label, "^" * width + more)
