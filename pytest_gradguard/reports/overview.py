"""Many findings at once: their order, their groups by place, and the line that counts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from pytest_gradguard.findings import Finding, Severity, merge

__all__ = ["Group", "count_line", "gravest_first", "group_by_place"]


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """`findings` by severity, then by place."""
    return sorted(
        findings,
        key=lambda f: (-f.severity, f.location.path, f.location.line, f.code, f.test or ""),
    )


class Group(NamedTuple):
    """One pitfall at one place, and the tests that met it there, in order of first meeting."""

    finding: Finding
    tests: tuple[str, ...]


def group_by_place(findings: Iterable[Finding]) -> list[Group]:
    """Join findings of one code at one place, whichever test met them; gravest first."""
    tests: dict[tuple[object, ...], dict[str, None]] = {}
    anywhere = []
    for finding in findings:
        nowhere = replace(finding, test=None)
        met = tests.setdefault(nowhere.key, {})
        if finding.test is not None:
            met[finding.test] = None
        anywhere.append(nowhere)
    return [Group(finding, tuple(tests[finding.key])) for finding in gravest_first(merge(anywhere))]


def count_line(
    findings: Iterable[Finding], *, where: str = "", hidden: int = 0, show_hidden: str = ""
) -> str:
    """A line such as ``1 error, 2 warnings in 3 tests; 4 info findings not shown (-v shows them)``.

    `where` follows the counts. `hidden` counts what is not among `findings`, and `show_hidden` is
    the option that would show it.
    """
    findings = list(findings)
    parts = []
    for severity, singular, plural in (
        (Severity.ERROR, "error", "errors"),
        (Severity.WARNING, "warning", "warnings"),
        (Severity.INFO, "info finding", "info findings"),
    ):
        number = sum(finding.severity is severity for finding in findings)
        if number:
            parts.append(f"{number} {singular if number == 1 else plural}")
    line = ", ".join(parts) or "no findings"
    return line + where + _hidden(hidden, show_hidden)


def _hidden(number: int, option: str) -> str:
    if not number:
        return ""
    them, findings = ("it", "finding") if number == 1 else ("them", "findings")
    return f"; {number} info {findings} not shown ({option} shows {them})"
