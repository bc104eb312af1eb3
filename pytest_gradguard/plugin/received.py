"""The findings of a whole run, as they arrive from tests and from xdist workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_gradguard.findings import Finding, merge

__all__ = ["Received"]


class Received:
    """Gathers findings. `shown` holds the keys of those that a test's failure shows in full."""

    def __init__(self) -> None:
        self.shown: set[tuple[Any, ...]] = set()
        self._findings: list[Finding] = []
        self._outside_of_tests: dict[tuple[Any, ...], Finding] = {}

    def findings(self) -> list[Finding]:
        """All so far, equal ones merged."""
        return merge([*self._findings, *self._outside_of_tests.values()])

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings of this process."""
        self._findings.extend(findings)

    def add_packed(self, text: str) -> None:
        """Take what a test's report carries."""
        from pytest_gradguard.plugin.transport import unpack

        findings, shown = unpack(text)
        self._findings.extend(findings)
        self.shown |= shown

    def add_of_worker(self, text: str) -> None:
        """Take what an xdist worker has found beside its tests' reports."""
        from pytest_gradguard.plugin.transport import unpack

        for finding in unpack(text)[0]:
            if finding.test is not None:
                self._findings.append(finding)
                continue
            # Every worker imports the same test modules: one finding, not one for each worker.
            known = self._outside_of_tests.get(finding.key)
            if known is None or known.count < finding.count:
                self._outside_of_tests[finding.key] = finding
