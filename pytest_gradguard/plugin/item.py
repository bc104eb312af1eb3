"""The guard of one test: what it found, what becomes a warning, what fails the test.

Most tests find nothing: what only findings need is imported with the first of them.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.plugin.names import PROPERTY
from pytest_gradguard.plugin.received import IGNORED, IN_SECTION, SHOWN
from pytest_gradguard.plugin.settings import Settings, marker_settings
from pytest_gradguard.runtime import allow
from pytest_gradguard.runtime.kernel.collector import Collector, collecting
from pytest_gradguard.runtime.kernel.faults import checked, fault, theirs_only
from pytest_gradguard.severity import Severity

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.tallies import Tally

__all__ = ["ItemGuard", "NoGuard", "not_found"]


class ItemGuard:
    """The guard of one run of one test. The fixture `gradguard` hands it to the test.

    Args:
        item: the test.
        settings: those of the whole run.
        base: the folder that paths are relative to.

    Raises:
        pytest.UsageError: a marker of the test is not usable.
    """

    def __init__(self, item: pytest.Item, settings: Settings, base: str) -> None:
        said = marker_settings(item)
        self._item = item
        self._expect = said.expect
        self._expected = said.expected
        ignore = (settings.ignore | said.allow) - self._expected
        self._collector = Collector(test=item.nodeid, ignore=ignore)
        self._taken: list[Finding] = []
        self._fail_on = said.fails_at(settings)
        self._base = base
        self._settled: dict[tuple[object, ...], Severity] = {}
        self._marks: dict[tuple[object, ...], str] = {}
        self._published: Counter[tuple[object, ...]] = Counter()

    @property
    def findings(self) -> list[Finding]:
        """What was found in this test so far, its fixtures included; gravest first."""
        if self._is_empty:
            return []
        from pytest_gradguard.findings import merge
        from pytest_gradguard.plugin.doctests import in_file
        from pytest_gradguard.plugin.transport import relative
        from pytest_gradguard.reports.overview import gravest_first

        try:
            found = [
                relative(in_file(finding, self._item), self._base)
                for finding in (
                    *self._collector.findings,
                    *merge(self._taken, attrgetter("claim")),
                )
            ]
        except Exception as error:  # pytest would end the whole run for a fault of the guard's
            fault(error)
            return []
        return gravest_first(found)

    @property
    def _is_empty(self) -> bool:
        """Nothing was found so far."""
        return self._collector.empty and not self._taken

    @property
    def _unexpected(self) -> list[Finding]:
        """Those of `findings` that no marker expects: they are what reports show."""
        return self._without_expected(self.findings)

    def _without_expected(self, findings: list[Finding]) -> list[Finding]:
        """Those of `findings` that no marker expects, and that explain none that one expects."""
        if not self._expected:
            return findings
        from pytest_gradguard.reports.overview import explained, linked

        return [
            finding
            for finding, losses in zip(findings, explained(linked(findings)), strict=True)
            if finding.code not in self._expected
            and not (losses and self._expected.issuperset(loss.code for loss in losses))
        ]

    @property
    def calls(self) -> list[Tally]:
        """The parallel calls of this test."""
        return self._collector.tallies

    def allow(self, *codes: str, reason: str | None = None) -> AbstractContextManager[None]:
        """Inside this context, findings of `codes` are expected and not reported.

        Raises:
            ValueError: there is no such code.
        """
        __tracebackhide__ = True
        with theirs_only:
            held: AbstractContextManager[None] = checked(
                (TypeError, ValueError), allow, *codes, reason=reason, instead=nullcontext()
            )
        return held

    def take(self, findings: Iterable[Finding]) -> None:
        """Add the findings of watches: of one place there may be several, each with its cause."""
        self._taken += [
            dataclasses.replace(finding, test=self._item.nodeid)
            for finding in findings
            if finding.code not in self._collector.ignore
        ]

    def hear(self, then: Callable[[list[Finding]], None]) -> None:
        """Call `then` with new findings of warning and above, as calls and backwards end."""
        self._collector.hear = lambda new: then(new) if new else None

    def collecting(self) -> AbstractContextManager[object]:
        """Inside this context, the test is the one that new findings belong to."""
        return collecting(self._collector)

    def settle(self, *, failing: bool) -> None:
        """Turn what was found since the last time into warnings, and into the test's failure.

        Args:
            failing: the test fails (or is skipped) for a reason of its own, and keeps it.

        Raises:
            GradGuardFailure: new findings reach the severity that fails this test, or the
                warning filters turned one into an error.
        """
        if self._is_empty:
            return
        fatal: set[tuple[object, ...]] = set()
        findings = self.findings
        for finding in self._without_expected(findings):
            if self._settled.get(finding.key, -1) >= finding.severity:
                continue
            self._settled[finding.key] = finding.severity
            action = "none" if finding.severity < Severity.WARNING else _warn(finding, self._base)
            if action == "ignored":
                self._marks[finding.key] = IGNORED
            if action == "raised" or self._reaches(finding):
                fatal.add(finding.key)
        if fatal and not failing:
            from pytest_gradguard.plugin.failure import GradGuardFailure

            raise GradGuardFailure(_with_what_explains(findings, fatal), self._base)

    def _reaches(self, finding: Finding) -> bool:
        """Whether `finding` is grave enough to fail this test."""
        return self._fail_on is not None and finding.severity >= self._fail_on

    def require_expected(self) -> None:
        """Fail the test if something that its markers expect was not found.

        Raises:
            pytest.fail.Exception: so it is; the message names what is missing, and what was found.
        """
        __tracebackhide__ = True
        if not self._expect or is_disabled():
            return
        found = {finding.code for finding in self.findings}
        missing = [selector for selector, codes in self._expect if codes.isdisjoint(found)]
        if missing:
            pytest.fail(not_found(missing, found), pytrace=False)

    def complete(
        self, report: pytest.TestReport, excinfo: pytest.ExceptionInfo[BaseException] | None
    ) -> None:
        """Show findings in `report`: as its failure, or beside a failure of the test's own."""
        if self._is_empty:
            return
        from pytest_gradguard.plugin.failure import FailureRepr, GradGuardFailure, columns, lines

        failure = None if excinfo is None else excinfo.value
        width = columns(self._item.config)
        if excinfo is not None and isinstance(failure, GradGuardFailure):
            report.longrepr = FailureRepr(failure, excinfo, width)  # type: ignore[assignment]
            shown = list(failure.findings)
        else:
            shown = [
                finding
                for finding in self._unexpected
                if finding.severity >= Severity.WARNING and self._marks.get(finding.key) != IGNORED
            ]
            told = {one.key[:-1] for one in self._raised(failure)}
            beside = [finding for finding in shown if finding.key[:-1] not in told]
            if report.failed and beside:
                text = "\n".join(lines(beside, self._base, width=width))
                report.sections.append(("gradguard", text))
        if report.failed:
            self._marks.update((finding.key, SHOWN) for finding in shown)

    def _raised(self, error: BaseException | None) -> list[Finding]:
        """The findings that the test's own error shows, as `findings` has them."""
        from pytest_gradguard.messages import GradGuardError
        from pytest_gradguard.plugin.transport import relative

        raised = error.findings if isinstance(error, GradGuardError) else ()
        return [relative(finding, self._base) for finding in raised]

    def publish(self) -> None:
        """Hand the findings to the test's reports, from which summary and JUnit take them."""
        findings = self._unexpected
        # Of an earlier run of this test nothing stays.
        kept = [one for one in self._item.user_properties if one[0].partition(".")[0] != PROPERTY]
        if findings:
            from pytest_gradguard.plugin.transport import pack

            kept.append((PROPERTY, pack(findings, self._marks)))
        kept += (
            (f"{PROPERTY}.{finding.code}", str(finding))  # for people who read the JUnit file
            for finding in findings
            if finding.severity >= Severity.WARNING
        )
        self._item.user_properties[:] = kept
        self._published = _counts(findings)

    def unpublished(self) -> list[Finding]:
        """What was found since `publish`: by work of the test that went on after its end."""
        late = []
        known = self._published.copy()
        for finding in self._unexpected:
            count = min(finding.count, known[finding.key])
            known[finding.key] -= count
            if finding.count > count:
                late.append(dataclasses.replace(finding, count=finding.count - count))
        return late

    def fails_late(self, finding: Finding) -> bool:
        """Whether `finding`, which is `unpublished`, would have failed the test."""
        judged = self._settled.get(finding.key, -1) >= finding.severity
        return self._reaches(finding) and not judged


class NoGuard:
    """What the fixture `gradguard` hands to a test where the guard itself fails: it finds nothing.

    Attributes:
        findings: none.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def allow(self, *codes: str, reason: str | None = None) -> AbstractContextManager[None]:
        """As for `ItemGuard`: nothing is reported either way."""
        return nullcontext()


def not_found(missing: Iterable[str], found: Iterable[str]) -> str:
    """What a test fails with whose marker expects `missing`, codes or prefixes."""
    from pytest_gradguard import pitfalls

    names = []
    for selector in missing:
        known = selector in pitfalls.codes()
        names.append(f"{selector} ({pitfalls.get(selector).name})" if known else selector)
    reported = ", ".join(sorted(found)) or "nothing"
    return (
        f"gradguard: {', '.join(names)}: expected by the marker gradguard, but not reported "
        f"(reported: {reported})"
    )


def _counts(findings: Iterable[Finding]) -> Counter[tuple[object, ...]]:
    """How often each was found; what a finding says may change as it goes on, its key does not."""
    counts: Counter[tuple[object, ...]] = Counter()
    for finding in findings:
        counts[finding.key] += finding.count
    return counts


def _with_what_explains(findings: list[Finding], fatal: Set[tuple[object, ...]]) -> list[Finding]:
    """Those of `findings` whose keys are `fatal`, each followed by what explains it."""
    from pytest_gradguard.reports.overview import folded

    worth_showing = (finding for finding in findings if finding.severity >= Severity.WARNING)
    return [
        one
        for finding, because in folded(worth_showing)
        for one in (finding, *because)
        if not fatal.isdisjoint((finding.key, one.key))
    ]


def _warn(finding: Finding, base: str) -> Literal["shown", "ignored", "raised"]:
    """Warn at the user's line; what the warning filters make of it."""
    from pytest_gradguard.messages import GradGuardWarning, warning_for
    from pytest_gradguard.runtime.kernel.announcing import emit

    warning = warning_for(finding)
    warning.args += (IN_SECTION,)
    path = os.path.join(base, finding.location.path)
    try:
        with warnings.catch_warnings(record=True) as passed:
            emit(warning, path, finding.location.line)
    except GradGuardWarning:
        return "raised"
    for one in passed:  # for pytest, and whoever else listens
        warnings.showwarning(one.message, one.category, one.filename, one.lineno)
    return "shown" if passed else "ignored"
