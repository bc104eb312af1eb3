"""The active part of the plugin: every test under the guard, every finding to its test."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gradguard.disabled import NOTHING, VARIABLE, is_disabled
from pytest_gradguard.messages import GradGuardError
from pytest_gradguard.plugin.item import ItemGuard
from pytest_gradguard.plugin.names import PROPERTY
from pytest_gradguard.plugin.outside import outside_of_tests
from pytest_gradguard.plugin.received import FATAL, IN_SECTION, Received
from pytest_gradguard.plugin.settings import Settings
from pytest_gradguard.reports.printable import shown
from pytest_gradguard.runtime import Report, guard
from pytest_gradguard.runtime.kernel.faults import attempt, checked
from pytest_gradguard.runtime.kernel.sudden_end import before_exit
from pytest_gradguard.severity import Severity

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding
    from pytest_gradguard.tallies import Tally

__all__ = ["GuardPlugin"]

_GUARD = pytest.StashKey[ItemGuard]()
_WORKER_OUTPUT = "gradguard_findings"
_WORKER_CALLS = "gradguard_calls"
_PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
_BY_FIXTURE = "the tests that use the fixtures gradguard, watch_gradients and check_gradients"


class GuardPlugin:
    """Guards all tests (`everywhere`), or only those that ask for the fixture `gradguard`."""

    def __init__(self, config: pytest.Config, settings: Settings, *, everywhere: bool) -> None:
        self.config = config
        self.settings = settings
        self.everywhere = everywhere
        self.base = str(config.invocation_params.dir)
        self._received = Received()
        self._guards: list[ItemGuard] = []
        self._write_error: str | None = None
        self._written: list[Path] = []
        self._calls: list[Tally] = []
        self._outside: Report | None = None
        devices: Any = sys.modules.get("pytest_gradguard.runtime.kernel.simulated_devices")
        self._simulated = 0 if devices is None else devices.pretended()
        self._session = ExitStack()
        self._test = ExitStack()  # of the test that is running
        if config.pluginmanager.has_plugin("benchmark"):
            from pytest_gradguard.plugin import benchmarks

            self._session.callback(attempt(benchmarks.unguarded, instead=lambda: None))
        if everywhere:
            self._outside = outside_of_tests(config)
        self._process = os.getpid()
        self._known: set[object] = set()
        self._session.callback(before_exit(self._report_before_exit).undo)

    def __dir__(self) -> list[str]:
        """The hooks: pytest looks at whatever is listed here, twice."""
        return [name for name in vars(type(self)) if name.startswith("pytest_")]

    # -- one test ------------------------------------------------------------------------------

    def guard_of(self, item: pytest.Item) -> ItemGuard:
        """The guard of `item`, started now if it has none.

        Raises:
            pytest.UsageError: a marker of the test is not usable.
        """
        of_item = item.stash.get(_GUARD, None)
        return self._start(item) if of_item is None else of_item

    def guards(self, item: pytest.Item) -> bool:
        """Whether `item` is guarded."""
        return _GUARD in item.stash

    def take(self, item: pytest.Item, findings: Sequence[Finding]) -> None:
        """Report `findings`, made by another part of the plugin, with those of `item`.

        Of a test that is not guarded, they are for the reports that were asked for.
        """
        of_item = item.stash.get(_GUARD, None)
        if of_item is None and findings and self._reports():
            of_item = item.stash[_GUARD] = ItemGuard(item, self.settings, self.base)
        if of_item is not None:
            of_item.take(findings)

    def _reports(self) -> bool:
        """Whether the run writes a report; a worker of xdist goes by the options."""
        settings, option = self.settings, self.config.option
        return bool(
            settings.report or settings.html or option.gradguard_report or option.gradguard_html
        )

    def _start(self, item: pytest.Item) -> ItemGuard:
        self._test.close()  # of a test that was interrupted before its teardown
        of_item = item.stash[_GUARD] = ItemGuard(item, self.settings, self.base)
        self._guards.append(of_item)
        if self.settings.report is not None and not hasattr(self.config, "workeroutput"):
            of_item.hear(partial(self._write_early, item.nodeid))
        if not self.everywhere:
            self._test.enter_context(guard(mode="record"))
        self._test.enter_context(of_item.collecting())
        return of_item

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if _GUARD in item.stash:
            del item.stash[_GUARD]  # of an earlier run of the same test
        if self.everywhere or "gradguard" in getattr(item, "fixturenames", ()):
            checked((pytest.UsageError,), self._start, item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        try:
            result = yield
        except BaseException as error:
            if isinstance(error, GradGuardError):
                # Of a `with` block over `watch_gradients`, or of `check_gradients`.
                asked = [one for one in error.findings if one.code in ("GG104", "GG115")]
                attempt(self.take, item, asked)
            attempt(_settle, item, failing=True)
            raise
        attempt(_settle, item, failing=False)
        of_item = item.stash.get(_GUARD, None)
        if of_item is not None:
            attempt(of_item.require_expected)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            result = yield
        except BaseException:
            attempt(_settle, item, failing=True)
            raise
        else:
            attempt(_settle, item, failing=False)
            return result
        finally:
            attempt(self._test.close)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        of_item = item.stash.get(_GUARD, None)
        if of_item is not None:
            attempt(of_item.complete, report, call.excinfo)
            attempt(of_item.publish)
            report.user_properties = list(item.user_properties)
        return report

    # -- the whole run -------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return  # the last report of a test carries the findings of all its phases
        packed = [value for name, value in report.user_properties if name == PROPERTY]
        attempt(self._received.of_test, report.nodeid, str(packed[-1]) if packed else None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        attempt(self._take_from, node)

    def _take_from(self, node: Any) -> None:
        """Take what a worker of xdist leaves at its end."""
        text = (getattr(node, "workeroutput", None) or {}).get(_WORKER_OUTPUT)
        if text:
            from pytest_gradguard.plugin.transport import unpack

            self._received.add(*unpack(text))
        text = (getattr(node, "workeroutput", None) or {}).get(_WORKER_CALLS)
        if text:
            from pytest_gradguard.plugin.transport import unpack_calls

            self._calls += unpack_calls(text)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        try:
            return (yield)  # hooks of a conftest may lose something, too
        finally:
            attempt(self._finish, session)

    def _so_far(self) -> list[Finding]:
        """All findings up to now, with those of the test that is running."""
        so_far = Received()
        so_far.add([*self._received.findings(), *(finding for finding, _ in self._late())], {})
        return so_far.findings()

    def _write_early(self, test: str, new: list[Finding]) -> None:
        """Write the JSON report now, in case a signal ends the run before its end."""
        found = {(test, one.key, one.severity) for one in new} - self._known
        if found and self.settings.report is not None and os.getpid() == self._process:
            self._known |= found
            self._write_report(self.settings.report, self._so_far())

    def _report_before_exit(self) -> None:
        """Report what was found up to now: a test ends the run by `os._exit`."""
        from pytest_gradguard.findings import merge
        from pytest_gradguard.reports.text import blocks

        findings = self._so_far()
        if self.settings.report is not None and not hasattr(self.config, "workeroutput"):
            self._write_report(self.settings.report, findings)
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        grave = (one for one in findings if one.severity >= Severity.WARNING)
        shown = merge(replace(one, test=None) for one in grave)
        if shown:
            with nullcontext() if capture is None else capture.global_and_fixture_disabled():
                text = "\n".join(["gradguard: found before `os._exit`:", *blocks(shown)])
                print(f"\n{text}", file=sys.stderr, flush=True)

    def _write_report(self, path: Path, findings: list[Finding]) -> None:
        from pytest_gradguard.reports.file import write_report
        from pytest_gradguard.tallies import merge_tallies

        write_report(path, findings, merge_tallies(self._calls), guarded=self._guarded())

    def _guarded(self) -> str | None:
        """What the run is guarded in, where that is not all of it."""
        if attempt(is_disabled, instead=False):
            return NOTHING
        return None if self.everywhere else _BY_FIXTURE

    def _finish(self, session: pytest.Session) -> None:
        """Gather what no test has reported, fail the run for it, and write the reports."""
        late = self._late()
        fatal: dict[tuple[object, ...], str] = {one.key: FATAL for one, fails in late if fails}
        self._calls += self._called()
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            if late:
                from pytest_gradguard.plugin.transport import pack

                output[_WORKER_OUTPUT] = pack((finding for finding, _ in late), fatal)
            if self._calls:
                from pytest_gradguard.plugin.transport import pack_calls

                output[_WORKER_CALLS] = pack_calls(self._calls)
            return
        self._received.add((finding for finding, _ in late), fatal)
        if session.exitstatus == pytest.ExitCode.USAGE_ERROR:
            return  # a run that was refused has nothing to report
        if session.exitstatus in _PASSED and self._received.fatal():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._received.findings():
            from pytest_gradguard.plugin.folding import fold_failures

            attempt(fold_failures, session.config)
        if self.settings.report is not None or self.settings.html is not None:
            self._write(session)

    def _write(self, session: pytest.Session) -> None:
        """Write the reports that were asked for."""
        from pytest_gradguard.reports.file import write_page
        from pytest_gradguard.reports.target import TargetError
        from pytest_gradguard.source_repairs import with_repairs
        from pytest_gradguard.tallies import merge_tallies

        findings = self._received.findings()

        def report(path: Path) -> None:
            self._write_report(path, findings)

        def page(path: Path) -> None:
            repaired, calls = with_repairs(findings, self.base), merge_tallies(self._calls)
            write_page(path, repaired, calls, base=self.base, guarded=self._guarded())

        for path, write in ((self.settings.report, report), (self.settings.html, page)):
            if path is None:
                continue
            try:
                write(path)
                self._written.append(path)
            except TargetError as error:
                # The path was fine at the start; a run without its report must not look like one.
                self._write_error = str(error)
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _called(self) -> list[Tally]:
        """The parallel calls of the tests, and of what runs outside of them."""
        tallies = [tally for of_item in self._guards for tally in of_item.calls]
        tallies += [] if self._outside is None else self._outside.calls
        if not tallies:
            return []
        from pytest_gradguard.plugin.transport import relative_call
        from pytest_gradguard.tallies import merge_tallies

        return merge_tallies(relative_call(tally, self.base) for tally in tallies)

    def _late(self) -> list[tuple[Finding, bool]]:
        """What no test has reported, found after its end or outside of all: whether it is fatal."""
        late = [
            (finding, of_item.fails_late(finding))
            for of_item in self._guards
            for finding in of_item.unpublished()
        ]
        outside = [] if self._outside is None else self._outside.findings
        if outside:
            from pytest_gradguard.plugin.transport import relative

            lowest = self.settings.fail_on
            late.extend(
                (relative(finding, self.base), lowest is not None and finding.severity >= lowest)
                for finding in outside
                if finding.code not in self.settings.ignore
            )
        return late

    def pytest_unconfigure(self) -> None:
        attempt(self._test.close)
        attempt(self._session.close)

    # -- the terminal --------------------------------------------------------------------------

    def pytest_report_header(self) -> str:
        header: str = attempt(self._header, instead="gradguard: on")
        return header

    def _header(self) -> str:
        settings = self.settings
        if is_disabled():
            return f"gradguard: off ({VARIABLE} is set)"
        if self.everywhere:
            text = "gradguard: on"
        else:
            text = "gradguard: only for tests that use its fixture (--gradguard: for all)"
        text += f" (fail-on: {'never' if settings.fail_on is None else settings.fail_on.label})"
        if self._simulated:
            text += f", {self._simulated} simulated GPU{'s'[: self._simulated != 1]}"
        if settings.ignore:
            text += f", ignoring {', '.join(sorted(settings.ignore))}"
        return text

    @pytest.hookimpl(trylast=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Take what the section shows out of the terminal's own list of warnings again."""
        if IN_SECTION not in getattr(warning_message.message, "args", ())[1:]:
            return
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        listed = [] if terminal is None else terminal.stats.get("warnings", [])
        if listed:
            listed.pop()
            if not listed:
                del terminal.stats["warnings"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        from pytest_gradguard.plugin.failure import COLUMNS, columns

        node.workerinput[COLUMNS] = attempt(columns, self.config)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        attempt(self._summarize, terminalreporter)

    def _summarize(self, terminalreporter: pytest.TerminalReporter) -> None:
        findings = self._received.findings()
        if findings:
            from pytest_gradguard.plugin.summary import write_summary

            write_summary(terminalreporter, findings, self._received.marks(), self.base)
            if self.settings.annotate:
                from pytest_gradguard.plugin.summary import write_annotations

                write_annotations(terminalreporter, findings, self._received.marks(), self.base)
        fatal = self._received.fatal()
        if fatal:
            from pytest_gradguard.plugin.summary import why_the_run_fails

            terminalreporter.write_line(f"gradguard: {why_the_run_fails(fatal)}", red=True)
        if self._write_error is not None:
            terminalreporter.write_line(shown(f"gradguard: {self._write_error}"), red=True)
        if self._written and self.config.option.verbose >= 0:
            only = "" if self.everywhere else f" of {_BY_FIXTURE} (--gradguard: of all)"
            paths = shown(" and ".join(map(str, self._written)))
            terminalreporter.write_line(f"gradguard: report{only} written to {paths}")


def _settle(item: pytest.Item, *, failing: bool) -> None:
    """Settle what was found in the phase of `item` that has ended.

    Args:
        item: the test.
        failing: the phase raised, and keeps its own exception: findings only add to it.
    """
    __tracebackhide__ = True
    of_item = item.stash.get(_GUARD, None)
    if of_item is not None:
        of_item.settle(failing=failing)
