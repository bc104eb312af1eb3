"""``gradguard run``: a program under the guard, unchanged, and what was found at its end."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gradguard.cli import ranks
from pytest_gradguard.cli.program import (
    ProgramNotFound,
    add_program,
    execute,
    find_module,
    find_script,
)
from pytest_gradguard.cli.streams import complain
from pytest_gradguard.disabled import NOTHING, VARIABLE, is_disabled
from pytest_gradguard.findings import Finding, Severity, display_path
from pytest_gradguard.reports.file import check_apart, check_writable, write_page, write_report
from pytest_gradguard.reports.overview import count_line, gravest_first, where_to_read
from pytest_gradguard.reports.target import TargetError
from pytest_gradguard.reports.text import blocks, style_for, width_of
from pytest_gradguard.runtime import Report, install
from pytest_gradguard.runtime.kernel.faults import attempt, checked
from pytest_gradguard.runtime.kernel.sudden_end import before_exit
from pytest_gradguard.settings import SettingsError, load
from pytest_gradguard.source_repairs import with_repairs

__all__ = ["build_parser", "path_to_write", "run"]


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``gradguard run``."""
    parser = argparse.ArgumentParser(
        prog="gradguard run",
        usage="gradguard run [-h] [--report FILE] [--html FILE] [--min-severity LEVEL] "
        "[--simulate-gpu N] (SCRIPT | -m MODULE) [ARG ...]",
        description="Run a program under the guard. Its results and its exit status stay the same; "
        "the findings are printed to standard error at the end.",
        allow_abbrev=False,
    )
    parser.add_argument("--report", metavar="FILE", help="write the findings to this JSON file")
    parser.add_argument("--html", metavar="FILE", help="write the findings to this HTML page")
    parser.add_argument(
        "--min-severity",
        metavar="{info,warning,error}",
        default="warning",
        help="print findings of this severity and above (default: warning)",
    )
    parser.add_argument(
        "--simulate-gpu",
        metavar="N",
        help="simulate N GPUs for torch, on the CPU",
    )
    add_program(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the program; return its exit status, or 2 where the command line is not usable.

    Raises:
        SystemExit: what the program itself raised.
        KeyboardInterrupt: the same, and it has been shown.
    """
    name, *arguments = args.program[args.program[0] == "--" :]
    try:
        lowest = checked(_REFUSED, Severity.parse, args.min_severity, instead=Severity.WARNING)
        paths = tuple(checked(_REFUSED, path_to_write, one) for one in (args.report, args.html))
        checked(_REFUSED, check_apart, *paths)
        devices = None if args.simulate_gpu is None else _devices(args.simulate_gpu)
        ignored = checked(_REFUSED, lambda: load().ignored_codes(), instead=frozenset())
        program = (find_module if args.as_module else find_script)(name)
    except _REFUSED as error:
        complain(f"gradguard run: {error}")
        return 2
    report = attempt(install, mode="record", ignore=ignored) or Report()
    off = attempt(is_disabled, instead=False)
    if off:
        complain(f"gradguard: off ({VARIABLE} is set)")
    elif devices is not None:
        from pytest_gradguard.runtime.kernel import simulated_devices

        simulated_devices.load().start(devices)
    output = attempt(_Output, report, paths, lowest, off)
    # At exit, since threads and exit handlers of the program still run when its last line is done.
    # Handlers run in reverse order: this one, the first, is the last.
    if output is not None:
        atexit.register(attempt, output.conclude)
        attempt(before_exit, output.conclude)
    return execute(program, arguments, bool if output is None else output.failed)


_REFUSED = (ValueError, ProgramNotFound, SettingsError)
"""What says that the command line, or a setting, is not usable."""


def path_to_write(name: str | None) -> Path | None:
    """The file of that name, which can be written.

    Raises:
        ValueError: it cannot.
    """
    if name is None:
        return None
    path = Path(name).absolute()
    check_writable(path)
    return path


def _devices(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--simulate-gpu {text!r} is not a number of GPUs (1 or more)")
    return int(text)


class _Output:
    """What becomes of the findings at the program's end.

    Args:
        report: the findings.
        paths: where to write the report and the page.
        lowest: what is shown.
        off: nothing is watched.
    """

    def __init__(
        self,
        report: Report,
        paths: tuple[Path | None, ...],
        lowest: Severity,
        off: bool,
    ) -> None:
        self._report = report
        self._paths = paths
        self._lowest = lowest
        self._guarded = NOTHING if off else None
        self._rank = ranks.this_rank()
        self._folder = os.getcwd()
        self._process = os.getpid()
        self._written: set[object] = set()
        if self._rank is not None:
            report.hear(self._rank.tell)
        elif self._paths[0] is not None:
            report.hear(self._write_early)

    def failed(self, failed: bool) -> None:
        """Say how the program has ended."""
        if self._rank is not None:
            self._rank.failed = failed

    def _write_early(self, findings: Sequence[Finding]) -> None:
        """Write the report now, in case a signal ends the program before `conclude`."""
        path = self._paths[0]
        found = {(one.key, one.severity) for one in findings if one.severity >= Severity.WARNING}
        if path is not None and os.getpid() == self._process and not found <= self._written:
            self._written |= found
            write_report(path, gravest_first(findings), self._report.calls)

    def conclude(self) -> None:
        """Print the findings and write the report; paths are relative to where it began."""
        if os.getpid() != self._process:
            return  # a child that the program forked, and that ends as if it were the program
        try:
            os.chdir(self._folder)  # the program may have left it; nothing runs after this
        except OSError:
            pass
        every = self._report.findings
        said = ranks.Said(every, every) if self._rank is None else self._rank.end(every)
        if said is None:
            return  # another rank reports
        off = self._guarded is not None
        if said.shown or not (said.every or off):
            _print(gravest_first(said.shown), self._lowest)
        findings, calls = gravest_first(said.every), self._report.calls

        def report(path: Path) -> None:
            write_report(path, findings, calls, guarded=self._guarded)

        def page(path: Path) -> None:
            write_page(path, with_repairs(findings, os.getcwd()), calls, guarded=self._guarded)

        written = []
        for path, write in zip(self._paths, (report, page), strict=True):
            try:
                if path is not None:
                    write(path)
                    written.append(display_path(str(path)))
            except TargetError as error:
                complain(f"gradguard run: {error}")
        if written and not off:
            complain(f"gradguard: report written to {' and '.join(written)}")
        elif any(finding.severity >= self._lowest for finding in said.shown):
            complain(f"gradguard: {where_to_read(said.shown)}")


def _print(findings: Sequence[Finding], lowest: Severity) -> None:
    shown = [finding for finding in findings if finding.severity >= lowest]
    stream = sys.stderr
    if shown and stream is not None:
        for line in blocks(shown, style=style_for(stream), width=width_of(stream)):
            print(line, file=stream)
        print(file=stream)
    hidden = sum(finding.severity is Severity.INFO for finding in findings if finding not in shown)
    line = count_line(shown, hidden=hidden, show_hidden="--min-severity info")
    complain(f"gradguard: {line}")
