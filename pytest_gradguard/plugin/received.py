"""The findings of a whole run, as they arrive from tests and from xdist workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding

__all__ = ["FATAL", "IGNORED", "IN_SECTION", "SHOWN", "Received"]

SHOWN = "shown"
"""The mark of a finding that a test's failure shows in full."""

IGNORED = "ignored"
"""The mark of a finding that the warning filters of its test ignore."""

FATAL = "fatal"
"""The mark of a finding that fails the run, as no test could: it came outside of tests, or late."""

IN_SECTION = "shown in the section gradguard"
"""The second argument of a warning whose finding the terminal shows already."""


_IDENTITY = attrgetter("identity")


class Received:
    """Gathers findings; of a test that ran several times, those of its last run."""

    def __init__(self) -> None:
        self._of_tests: dict[str, tuple[list[Finding], dict[tuple[Any, ...], str]]] = {}
        self._late: list[Finding] = []
        self._fatal: set[tuple[Any, ...]] = set()
        self._outside_of_tests: dict[tuple[Any, ...], Finding] = {}

    def findings(self) -> list[Finding]:
        """All so far, equal ones merged; by test and place, in whichever order they came."""
        of_tests = (finding for findings, _ in self._of_tests.values() for finding in findings)
        gathered = [*of_tests, *self._late, *self._outside_of_tests.values()]
        if not gathered:
            return []
        from pytest_gradguard.findings import merge

        found = merge(gathered, _IDENTITY)
        return sorted(
            found,
            key=lambda one: (one.test or "", *one.key[1:4], one.code, one.message),
        )

    def fatal(self) -> list[Finding]:
        """Findings that fail the run itself."""
        return [finding for finding in self.findings() if finding.key in self._fatal]

    def marks(self) -> dict[tuple[Any, ...], str]:
        """What has become of some of them, by their identities."""
        of_tests = self._of_tests.values()
        return {
            finding.identity: marks[finding.key]
            for findings, marks in of_tests
            for finding in findings
            if finding.key in marks
        }

    def of_test(self, test: str, text: str | None) -> None:
        """Take what the report of `test` carries, None for nothing, in place of an earlier one."""
        if text is None:
            self._of_tests.pop(test, None)
            return
        from pytest_gradguard.plugin.transport import unpack

        self._of_tests[test] = unpack(text)

    def add(self, findings: Iterable[Finding], marks: Mapping[tuple[Any, ...], str]) -> None:
        """Take what this process or an xdist worker has found beside its tests' reports."""
        for finding in findings:
            if marks.get(finding.key) == FATAL:
                self._fatal.add(finding.key)
            if finding.test is not None:
                self._late.append(finding)
                continue
            from pytest_gradguard.findings import merge  # only now: most runs have none

            # The controller and every worker import the same files: one finding, not one for each.
            known = self._outside_of_tests.get(finding.identity, finding)
            (both,) = merge([known, finding])
            count = max(known.count, finding.count)
            self._outside_of_tests[finding.identity] = replace(both, count=count)
