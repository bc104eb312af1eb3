"""The findings of a whole run, as they arrive from tests and from xdist workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding

__all__ = ["IGNORED", "IN_SECTION", "SHOWN", "Received"]

SHOWN = "shown"
"""The mark of a finding that a test's failure shows in full."""

IGNORED = "ignored"
"""The mark of a finding that the warning filters of its test ignore."""

IN_SECTION = "shown in the section gradguard"
"""The second argument of a warning whose finding the terminal shows already."""


class Received:
    """Gathers findings; of a test that ran several times, those of its last run."""

    def __init__(self) -> None:
        self._of_tests: dict[str, tuple[list[Finding], dict[tuple[Any, ...], str]]] = {}
        self._late: list[Finding] = []
        self._outside_of_tests: dict[tuple[Any, ...], Finding] = {}

    def findings(self) -> list[Finding]:
        """All so far, equal ones merged; by test and place, in whichever order they came."""
        of_tests = (finding for findings, _ in self._of_tests.values() for finding in findings)
        gathered = [*of_tests, *self._late, *self._outside_of_tests.values()]
        if not gathered:
            return []
        from pytest_gradguard.findings import merge

        found = merge(gathered)
        return sorted(
            found, key=lambda finding: (finding.test or "", *finding.key[1:4], finding.code)
        )

    def marks(self) -> dict[tuple[Any, ...], str]:
        """What has become of some of them, by their keys."""
        return {key: mark for _, of in self._of_tests.values() for key, mark in of.items()}

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings of this process that no test's report carries."""
        self._late.extend(findings)

    def of_test(self, test: str, text: str | None) -> None:
        """Take what the report of `test` carries, None for nothing, in place of an earlier one."""
        if text is None:
            self._of_tests.pop(test, None)
            return
        from pytest_gradguard.plugin.transport import unpack

        self._of_tests[test] = unpack(text)

    def add_of_worker(self, text: str) -> None:
        """Take what an xdist worker has found beside its tests' reports."""
        from pytest_gradguard.findings import merge
        from pytest_gradguard.plugin.transport import unpack

        for finding in unpack(text)[0]:
            if finding.test is not None:
                self._late.append(finding)
                continue
            # Every worker imports the same test modules: one finding, not one for each worker.
            known = self._outside_of_tests.get(finding.key, finding)
            (both,) = merge([known, finding])
            count = max(known.count, finding.count)
            self._outside_of_tests[finding.key] = replace(both, count=count)
