"""The section `gradguard` of pytest's terminal summary."""

from __future__ import annotations

import linecache
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import pytest

from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.plugin.failure import columns, terminal_style
from pytest_gradguard.plugin.received import IGNORED, SHOWN
from pytest_gradguard.reports.overview import (
    Group,
    count_groups,
    count_line,
    distinct,
    group_by_place,
    where_to_read,
)
from pytest_gradguard.reports.printable import shown
from pytest_gradguard.reports.text import Style, render

__all__ = ["why_the_run_fails", "write_annotations", "write_summary"]

_TESTS_NAMED = 3


def write_summary(
    terminal: pytest.TerminalReporter,
    findings: Sequence[Finding],
    marks: Mapping[tuple[Any, ...], str],
    base: str,
) -> None:
    """Write what the run found: test by test, each place once, and a last line that counts.

    Info findings show with ``-v`` only, and those that warning filters ignore do not. A finding
    that a failure has shown in full is one line, and with ``-q`` all are.

    Args:
        terminal: pytest's own.
        findings: those of the whole run.
        marks: what has become of some, by their identities.
        base: the folder that their paths are relative to.
    """
    verbosity: int = terminal.config.option.verbose
    lowest = Severity.INFO if verbosity > 0 else Severity.WARNING
    failures_are_shown = terminal.config.getoption("tbstyle", "auto") not in ("no", "line")
    in_full = {one[:-1] for one, mark in marks.items() if mark == SHOWN and failures_are_shown}
    places = {claim[:-1] for claim in in_full}
    kept = [
        finding if finding.claim in in_full else _untold(finding, places)
        for finding in findings
        if marks.get(finding.identity) != IGNORED
    ]
    groups = group_by_place(finding for finding in kept if finding.severity >= lowest)
    every = group_by_place(kept)
    ignored = len(distinct(group_by_place(findings))) - len(distinct(every))
    if not groups and not ignored:
        return
    writer = terminal._tw
    style = terminal_style(writer)
    width = columns(terminal.config)

    def source_line(path: str, line: int) -> str:
        return linecache.getline(os.path.join(base, path), line)

    terminal.section("gradguard", sep="=")
    for tests, of_tests in _by_tests(groups).items():
        if verbosity >= 0:
            for line in _wrapped(_heading(tests), width):
                writer.line(style("strong", line))
        brief = False
        for group in of_tests:
            brief = verbosity < 0 or group.finding.claim in in_full
            if brief:
                for line in _in_brief(group, verbosity >= 0, style, width):
                    writer.line(line)
                continue
            for line in render(
                group.finding, group.because, style=style, source_line=source_line, width=width
            ):
                writer.line(line)
            writer.line()
        if brief and verbosity >= 0:
            writer.line()
    count = count_groups(every, lowest, show_hidden="-v")
    count += f"; {ignored} ignored by warning filters" if ignored else ""
    for line in _wrapped(count, width):
        writer.line(line)
    if groups and verbosity >= 0:
        writer.line(where_to_read(group.finding for group in groups))


def write_annotations(
    terminal: pytest.TerminalReporter,
    findings: Iterable[Finding],
    marks: Mapping[tuple[Any, ...], str],
    base: str,
) -> None:
    """Write an annotation of GitHub's for each group of findings of warning and above.

    The arguments are those of `write_summary`.
    """
    from pytest_gradguard.reports import github

    kept = (
        finding
        for finding in findings
        if finding.severity >= Severity.WARNING and marks.get(finding.identity) != IGNORED
    )
    for group in group_by_place(kept):
        for line in github.lines(group.findings, base=base):
            terminal.write_line(line)


def why_the_run_fails(fatal: Iterable[Finding]) -> str:
    """One line about findings that no test could fail with.

    Args:
        fatal: those found outside of tests, or after the end of theirs.
    """
    by_tests = _by_tests(group_by_place(fatal))
    parts = [
        count_line(distinct(groups))
        + (f" after the end of {_heading(tests)}" if tests else " outside of tests")
        for tests, groups in by_tests.items()
    ]
    return f"the run fails (exit status 1): {', '.join(parts)}"


def _untold(finding: Finding, places: Set[tuple[Any, ...]]) -> Finding:
    """`finding` as one that stands for itself, if what it explains is shown above without it."""
    explains = tuple(one for one in finding.explains if one not in places)
    return finding if explains == finding.explains else replace(finding, explains=explains)


def _wrapped(text: str, width: int | None) -> list[str]:
    """`text` in lines of whole words."""
    if width is None:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


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
    return shown(", ".join(tests[:_TESTS_NAMED])) + (f" and {more} more" if more > 0 else "")


def _in_brief(group: Group, above: bool, style: Style, width: int | None) -> list[str]:
    """The group in one line, or in two on a narrow terminal; `above`: it is shown above."""
    finding = group.finding
    severity = finding.severity.label
    head = style(severity, f"{severity}[{finding.code}]") + " " + style("strong", finding.name)
    where = f"at {shown(finding.location.path)}:{finding.location.line}"
    codes = " and ".join(dict.fromkeys(other.code for other in group.because))
    where += f", with {codes}" if codes else ""
    end = " (shown above)" if above else ""
    length = len(f"{severity}[{finding.code}] {finding.name} {where}{end}")
    where += style("dim", end)
    return [head, f"  {where}"] if width is not None and length > width else [f"{head} {where}"]
