"""``pytest --gradguard-compare``: tests that hand out work run again, with that work inline."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.runner import CallInfo, runtestprotocol

from pytest_gradguard.comparing import blocking, difference, notes
from pytest_gradguard.comparing.difference import Difference
from pytest_gradguard.comparing.recording import recording
from pytest_gradguard.comparing.running import ROUNDING, Compared, explaining
from pytest_gradguard.comparing.words import lines_of
from pytest_gradguard.findings import Finding
from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime import guard
from pytest_gradguard.runtime.kernel import generators, inline

NAME = "gradguard-comparing"
_PATIENCE = 10.0
Reports = list[pytest.TestReport]


class _Run:
    """One run of a test.

    Attributes:
        reports: what pytest reports of it.
        notes: the file of what was noted.
        findings: what the guard has found.
        calls: how many calls to workers the test has begun.
        handed: how many tasks ran inline.
        blocked: why the work cannot be done inline; empty where it can.
    """

    def __init__(self, item: pytest.Function, path: Path, *, inlined: bool) -> None:
        self.notes = path
        self.blocked = ""
        with guard("record") as report:
            with self._interrupted(inlined), recording(path, inlined=inlined) as recorded:
                item._initrequest()
                self.reports: Reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
                self.handed = inline.state.handed if inlined else 0
            self.findings: Sequence[Finding] = report.findings
        self.calls = recorded.calls

    @property
    def passed(self) -> bool:
        """Whether the test has passed."""
        return all(report.passed for report in self.reports)

    @contextmanager
    def _interrupted(self, inlined: bool) -> Iterator[None]:
        """A block in which a task that waits forever is interrupted, where that is possible."""
        number = HERE.task_signal
        if not inlined or number is None:
            yield
            return

        def interrupt(_: int, __: FrameType | None) -> None:
            raise inline.Blocked(self.blocked)

        def give_up(why: str) -> None:
            self.blocked = f"a task {why}"
            signal.raise_signal(number)

        before = signal.signal(number, interrupt)
        stop = blocking.watch(_PATIENCE, give_up)
        try:
            yield
        finally:
            stop()
            signal.signal(number, before)


class ComparePlugin:
    """Runs tests twice."""

    def __init__(self) -> None:
        self._counts = {"the same": 0, "differ": 0, "not compared": 0}
        self._remarks: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run a test, and compare."""
        if not isinstance(item, pytest.Function):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Function, nextitem: pytest.Item | None) -> Reports:
        with tempfile.TemporaryDirectory(prefix="gradguard-compare-") as folder:
            reports = self._compared(item, Path(folder))
        call = CallInfo.from_call(
            lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown"
        )
        if call.excinfo is not None:
            reports.append(item.ihook.pytest_runtest_makereport(item=item, call=call))
        return reports

    def _compared(self, item: pytest.Function, folder: Path) -> Reports:
        restore = generators.capture()
        bare = _Run(item, folder / "workers", inlined=False)
        if not bare.passed or not bare.calls:
            return bare.reports
        after = generators.capture()
        restore()
        inlined = _Run(item, folder / "inline", inlined=True)
        found = _difference(bare, inlined)
        again = None
        if not inlined.blocked and inlined.handed and (found or not inlined.passed):
            restore()
            again = _Run(item, folder / "again", inlined=False)
        after()
        self._tell(item, bare, inlined, found, again)
        return bare.reports

    def _tell(
        self,
        item: pytest.Function,
        bare: _Run,
        inlined: _Run,
        found: Difference | None,
        again: _Run | None,
    ) -> None:
        by_chance = None if again is None else _difference(bare, again)
        if inlined.blocked:
            self._not_compared(item, inlined.blocked)
        elif not inlined.handed:
            return
        elif by_chance is not None and (found is None or by_chance.number <= found.number):
            self._not_compared(item, f"two runs of the test differ, too, {by_chance.moment}")
        elif found is not None:
            self._counts["differ"] += 1
            known = explaining(bare.findings)
            compared = Compared(1, difference=found, explaining=known, handed=inlined.handed)
            report = next(one for one in bare.reports if one.when == "call")
            report.outcome = "failed"
            report.longrepr = "\n".join(lines_of(compared))
        elif not inlined.passed:
            self._not_compared(item, "it fails with the work of its workers in this process")
        else:
            self._counts["the same"] += 1

    def _not_compared(self, item: pytest.Item, reason: str) -> None:
        self._counts["not compared"] += 1
        self._remarks.append(f"{item.nodeid}: not compared: {reason}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how many tests were compared, and which could not be."""
        counts = ", ".join(f"{number} {name}" for name, number in self._counts.items() if number)
        if counts:
            terminalreporter.section("gradguard compare")
            for line in (*self._remarks, f"tests with workers and in one process: {counts}"):
                terminalreporter.line(line)


def _difference(one: _Run, other: _Run) -> Difference | None:
    return difference.first(notes.read(one.notes), notes.read(other.notes), *ROUNDING)
