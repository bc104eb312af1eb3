"""The section `gradguard` of pytest's terminal summary."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_gradguard.findings import Severity
from pytest_gradguard.plugin.failure import lines, terminal_style
from pytest_gradguard.plugin.transport import Received
from pytest_gradguard.reports.overview import Group, count_line, group_by_place

__all__ = ["write_summary"]

_TESTS_NAMED = 3


def write_summary(
    terminal: pytest.TerminalReporter, received: Sequence[Received], base: str
) -> None:
    """Write what the run found, each place once, and a last line that counts.

    Info findings show with ``-v`` only. What a failure has shown in full is not repeated: one
    line names it. With ``-q`` every finding is one line.
    """
    verbosity = terminal.config.get_verbosity()
    lowest = Severity.INFO if verbosity > 0 else Severity.WARNING
    findings = [entry.finding for entry in received]
    groups = [group for group in group_by_place(findings) if group.finding.severity >= lowest]
    if not groups:
        return
    failures_are_shown = terminal.config.getoption("tbstyle", "auto") not in ("no", "line")
    in_full = {entry.finding.key[:-1] for entry in received if entry.shown and failures_are_shown}
    writer = terminal._tw
    style = terminal_style(writer)
    terminal.section("gradguard", sep="=")
    for number, group in enumerate(groups):
        finding = group.finding
        if verbosity < 0 or finding.key[:-1] in in_full:
            where = finding.location
            label = style(finding.severity.label, f"{finding.severity.label}[{finding.code}]")
            text = f"{label} {style('strong', finding.name)} at {where.path}:{where.line}"
            writer.line(text + ("" if verbosity < 0 else style("dim", " (shown above)")))
        else:
            if number:
                writer.line()
            for line in lines(finding, base, style):
                writer.line(line)
            writer.line(style("dim", "in ") + _tests(group))
    hidden = sum(finding.severity < lowest for finding in findings)
    tests = {test for group in groups for test in group.tests}
    where_found = f" in {len(tests)} test{'s' if len(tests) != 1 else ''}" if tests else ""
    terminal.write_line(
        count_line(
            (group.finding for group in groups), where=where_found, hidden=hidden, show_hidden="-v"
        )
    )


def _tests(group: Group) -> str:
    named = ", ".join(group.tests[:_TESTS_NAMED]) or "no test (outside of tests)"
    more = len(group.tests) - _TESTS_NAMED
    return f"{named} and {more} more" if more > 0 else named
