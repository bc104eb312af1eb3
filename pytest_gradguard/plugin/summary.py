"""The section `gradguard` of pytest's terminal summary."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.plugin.failure import lines, terminal_style
from pytest_gradguard.reports.overview import Group, count_line, group_by_place
from pytest_gradguard.reports.text import Style

__all__ = ["write_summary"]

_TESTS_NAMED = 3


def write_summary(
    terminal: pytest.TerminalReporter,
    findings: Sequence[Finding],
    shown: Collection[tuple[Any, ...]],
    base: str,
) -> None:
    """Write what the run found: test by test, each place once, and a last line that counts.

    Info findings show with ``-v`` only. A finding that a failure has shown in full (its key is in
    `shown`) is one line, and with ``-q`` all are.
    """
    verbosity: int = terminal.config.option.verbose
    lowest = Severity.INFO if verbosity > 0 else Severity.WARNING
    groups = [group for group in group_by_place(findings) if group.finding.severity >= lowest]
    if not groups:
        return
    failures_are_shown = terminal.config.getoption("tbstyle", "auto") not in ("no", "line")
    in_full = {key[:-1] for key in shown} if failures_are_shown else set()
    writer = terminal._tw
    style = terminal_style(writer)
    terminal.section("gradguard", sep="=")
    for tests, of_tests in _by_tests(groups).items():
        if verbosity >= 0:
            writer.line(style("strong", _heading(tests)))
        brief = False
        for group in of_tests:
            brief = verbosity < 0 or group.finding.key[:-1] in in_full
            if verbosity < 0:
                writer.line(_one_line(group, style))
            elif brief:
                writer.line(_one_line(group, style) + style("dim", " (shown above)"))
            else:
                for line in lines(group.finding, base, style):
                    writer.line(line)
                writer.line()
        if brief and verbosity >= 0:
            writer.line()
    writer.line(_last_line(groups, findings, lowest))


def _by_tests(groups: Sequence[Group]) -> dict[tuple[str, ...], list[Group]]:
    """The groups of the same tests side by side, in the order of the gravest."""
    together: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        together.setdefault(group.tests, []).append(group)
    return together


def _heading(tests: Sequence[str]) -> str:
    if not tests:
        return "outside of tests"
    more = len(tests) - _TESTS_NAMED
    return ", ".join(tests[:_TESTS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _one_line(group: Group, style: Style) -> str:
    finding = group.finding
    label = style(finding.severity.label, f"{finding.severity.label}[{finding.code}]")
    where = f"{finding.location.path}:{finding.location.line}"
    return f"{label} {style('strong', finding.name)} at {where}"


def _last_line(groups: Sequence[Group], findings: Sequence[Finding], lowest: Severity) -> str:
    tests = {test for group in groups for test in group.tests}
    where = f" in {len(tests)} test{'' if len(tests) == 1 else 's'}" if tests else ""
    hidden = sum(finding.severity < lowest for finding in findings)
    shown = (group.finding for group in groups)
    return count_line(shown, where=where, hidden=hidden, show_hidden="-v")
