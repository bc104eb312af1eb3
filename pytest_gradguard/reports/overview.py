"""Many findings at once: their order, what belongs together, and the line that counts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from pytest_gradguard import pitfalls
from pytest_gradguard.findings import Finding, Severity, display_place, merge

__all__ = [
    "Group",
    "count_groups",
    "count_line",
    "distinct",
    "explained",
    "explanations",
    "folded",
    "gravest_first",
    "group_by_place",
    "linked",
    "where_to_read",
]

_BY_CLAIM = attrgetter("claim")


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """`findings` by severity, then by place."""
    return sorted(
        findings,
        key=lambda f: (-f.severity, f.location.path, f.location.line, f.code, f.test or ""),
    )


def linked(findings: Iterable[Finding]) -> list[Finding]:
    """`findings`, where what was sent or returned refers to the loss that it is a part of.

    The guard ties the two by the call. Here are added those at one and the same call, and in the
    linter's findings those that stand in the chain of the loss.
    """
    findings = list(findings)
    losses = [finding for finding in findings if pitfalls.get(finding.code).part == "lost"]
    if not losses:
        return findings
    return [_linked(finding, losses) for finding in findings]


def _linked(finding: Finding, losses: Sequence[Finding]) -> Finding:
    if pitfalls.get(finding.code).part in (None, "lost"):
        return finding
    own = [loss.reference for loss in losses if _is_part(finding, loss)]
    explains = tuple(dict.fromkeys((*finding.explains, *own)))
    return finding if explains == finding.explains else replace(finding, explains=explains)


def _is_part(finding: Finding, loss: Finding) -> bool:
    if (finding.test, finding.origin) != (loss.test, loss.origin):
        return False
    where = finding.location
    if loss.origin == "lint":
        return any((step.file, step.line) == (where.file, where.line) for step in loss.trace)
    return finding.key[1:] == loss.key[1:]


def explained(findings: Sequence[Finding]) -> list[list[Finding]]:
    """For each of `findings`, those among them that it explains; `linked` has tied them."""
    named = defaultdict(list)
    for finding in findings:
        named[finding.reference].append(finding)
    return [[loss for one in finding.explains for loss in named[one]] for finding in findings]


Folded = tuple[Finding, tuple[Finding, ...]]
"""A finding, and those that explain it."""


def folded(findings: Iterable[Finding]) -> list[Folded]:
    """`findings` in their order, each that explains another of them beside that one.

    One that explains several stands with the first of its own test, else with the first of all.
    """
    findings = linked(findings)
    hosts: dict[int, Finding] = {}
    for finding, losses in zip(findings, explained(findings), strict=True):
        graver = [loss for loss in losses if loss.severity >= finding.severity]
        if graver:
            hosts[id(finding)] = min(graver, key=lambda loss: loss.test != finding.test)
    return [
        (finding, tuple(other for other in findings if hosts.get(id(other)) is finding))
        for finding in findings
        if id(finding) not in hosts
    ]


def explanations(finding: Finding, because: Iterable[Finding]) -> list[tuple[Finding, str]]:
    """The findings that explain `finding`, what was sent first, each with a line about it."""
    file = finding.location.file
    told = []
    for one in because:
        at = one.location
        place = f"line {at.line}" if at.file == file else display_place(at.file, at.line)
        part, subject = pitfalls.get(one.code).part, one.details.get("subject")
        told.append((one, f"{part}: {one.code} at {place}" + (f": {subject}" if subject else "")))
    return sorted(told, key=lambda both: not both[1].startswith("sent: "))


class Group(NamedTuple):
    """One claim about one place, and the tests that met it there, in order of first meeting.

    `because` are the findings that explain it, from whichever of these tests.
    """

    finding: Finding
    tests: tuple[str, ...]
    because: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of it."""
        return (self.finding, *self.because)


def group_by_place(findings: Iterable[Finding]) -> list[Group]:
    """Join findings that say the same of one place, whichever test met them; gravest first."""
    tests: dict[tuple[object, ...], dict[str, None]] = defaultdict(dict)
    because: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
    anywhere = []
    for finding, explaining in folded(findings):
        nowhere = replace(finding, test=None)
        if finding.test is not None:
            tests[nowhere.claim][finding.test] = None
        because[nowhere.claim] += (replace(other, test=None) for other in explaining)
        anywhere.append(nowhere)
    return [
        Group(finding, tuple(tests[finding.claim]), tuple(merge(because[finding.claim], _BY_CLAIM)))
        for finding in gravest_first(merge(anywhere, _BY_CLAIM))
    ]


def distinct(groups: Iterable[Group]) -> list[Finding]:
    """The findings of all `groups`, each claim once."""
    return merge((finding for group in groups for finding in group.findings), _BY_CLAIM)


def count_groups(groups: Iterable[Group], lowest: Severity, *, show_hidden: str = "") -> str:
    """The line that counts each claim of `groups` once, and the tests that met them.

    Args:
        groups: all there are.
        lowest: the lowest severity that is shown.
        show_hidden: the option that would show the others, where one is needed.
    """
    groups = list(groups)
    every = distinct(groups)
    counted = [finding for finding in every if finding.severity >= lowest]
    tests = {test for group in groups if group.finding.severity >= lowest for test in group.tests}
    where = f" in {len(tests)} test{'' if len(tests) == 1 else 's'}" if tests else ""
    hidden = len(every) - len(counted)
    return count_line(counted, where=where, hidden=hidden, show_hidden=show_hidden)


def where_to_read(findings: Iterable[Finding]) -> str:
    """Which command explains the gravest of `findings`."""
    gravest = max(findings, key=lambda finding: finding.severity)
    return f"see `gradguard explain {gravest.code}`"


def count_line(
    findings: Iterable[Finding], *, where: str = "", hidden: int = 0, show_hidden: str = ""
) -> str:
    """A line such as ``1 error, 2 warnings in 3 tests; 4 info findings not shown (-v shows them)``.

    `where` follows the counts. `hidden` counts what is not among `findings`, and `show_hidden` is
    the option that would show it, where one is needed.
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
    how = f" not shown ({option} shows {them})" if option else ""
    return f"; {number} info {findings}{how}"
