"""The section `gradguard` of pytest's terminal summary."""

from __future__ import annotations

import linecache
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import pytest

from pytest_gradguard.findings import Finding, Severity, merge
from pytest_gradguard.plugin.failure import columns, terminal_style
from pytest_gradguard.plugin.received import IGNORED, SHOWN
from pytest_gradguard.reports.overview import Group, count_line, group_by_place
from pytest_gradguard.reports.printable import shown
from pytest_gradguard.reports.text import Style, render

__all__ = ["write_annotations", "write_summary"]

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
        marks: what has become of some, by their keys.
        base: the folder that their paths are relative to.
    """
    verbosity: int = terminal.config.option.verbose
    lowest = Severity.INFO if verbosity > 0 else Severity.WARNING
    failures_are_shown = terminal.config.getoption("tbstyle", "auto") not in ("no", "line")
    in_full = {key[:-1] for key, mark in marks.items() if mark == SHOWN and failures_are_shown}
    kept = [_untold(finding, in_full) for finding in findings if marks.get(finding.key) != IGNORED]
    groups = group_by_place(finding for finding in kept if finding.severity >= lowest)
    ignored = len(findings) - len(kept)
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
            brief = verbosity < 0 or group.finding.key[:-1] in in_full
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
    hidden = sum(finding.severity < lowest for finding in kept)
    for line in _wrapped(_last_line(groups, hidden, ignored), width):
        writer.line(line)


def write_annotations(
    terminal: pytest.TerminalReporter,
    findings: Iterable[Finding],
    marks: Mapping[tuple[Any, ...], str],
    base: str,
) -> None:
    """Write an annotation of GitHub's for each place with findings of warning and above.

    The arguments are those of `write_summary`.
    """
    from pytest_gradguard.reports import github

    kept = (
        finding
        for finding in findings
        if finding.severity >= Severity.WARNING and marks.get(finding.key) != IGNORED
    )
    for group in group_by_place(kept):
        for finding in group.findings:
            path = os.path.join(base, finding.location.path)
            placed = replace(finding, location=replace(finding.location, path=path))
            for line in github.lines([placed]):
                terminal.write_line(line)


def _untold(finding: Finding, in_full: Set[tuple[Any, ...]]) -> Finding:
    """`finding` as one that stands for itself, if what it explains is shown above without it."""
    if not finding.explains or finding.key[:-1] in in_full:
        return finding
    return replace(finding, explains=tuple(one for one in finding.explains if one not in in_full))


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


def _last_line(groups: Sequence[Group], hidden: int, ignored: int) -> str:
    tests = {test for group in groups for test in group.tests}
    where = f" in {len(tests)} test{'' if len(tests) == 1 else 's'}" if tests else ""
    shown = merge(finding for group in groups for finding in group.findings)
    line = count_line(shown, where=where, hidden=hidden, show_hidden="-v")
    return line + (f"; {ignored} ignored by warning filters" if ignored else "")
