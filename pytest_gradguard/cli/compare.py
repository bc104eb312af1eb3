"""``gradguard compare``: a program with its workers, and with their work in its own process."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_gradguard.cli.program import ProgramNotFound, add_program, find_module, find_script
from pytest_gradguard.cli.run import path_to_write
from pytest_gradguard.cli.streams import complain
from pytest_gradguard.comparing.running import Compared, Tolerance, compare
from pytest_gradguard.comparing.words import lines_of, summary, to_dict
from pytest_gradguard.disabled import VARIABLE, is_disabled
from pytest_gradguard.findings import display_path
from pytest_gradguard.reports.file import check_apart, write_page, write_report
from pytest_gradguard.reports.overview import gravest_first
from pytest_gradguard.reports.target import TargetError
from pytest_gradguard.source_repairs import with_repairs

__all__ = ["build_parser", "run"]


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``gradguard compare``."""
    parser = argparse.ArgumentParser(
        prog="gradguard compare",
        usage="gradguard compare [-h] [--rtol R] [--atol A] [--report FILE] [--html FILE] "
        "(SCRIPT | -m MODULE) [ARG ...]",
        description="Run a program as it is, and again with the work of its workers done in its "
        "own process; compare gradients and parameters at each optimizer step and at the end. "
        "What the program writes, it writes twice, and three times where the runs differ.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--rtol", metavar="R", help="allow this relative difference (default: that of rounding)"
    )
    parser.add_argument(
        "--atol", metavar="A", help="allow this absolute difference (default: that of rounding)"
    )
    parser.add_argument("--report", metavar="FILE", help="write the result to this JSON file")
    parser.add_argument("--html", metavar="FILE", help="write the result to this HTML page")
    add_program(parser)
    return parser


_REFUSED = (ValueError, ProgramNotFound)


def run(args: argparse.Namespace) -> int:
    """Compare the program with itself; the exit status says what came of it."""
    words = args.program[args.program[0] == "--" :]
    try:
        tolerance = Tolerance(_number("--rtol", args.rtol), _number("--atol", args.atol))
        report, page = (path_to_write(one) for one in (args.report, args.html))
        check_apart(report, page)
        (find_module if args.as_module else find_script)(words[0])
        if is_disabled():
            raise ValueError(f"nothing can be compared: {VARIABLE} is set")
    except _REFUSED as error:
        complain(f"gradguard compare: {error}")
        return 2
    compared = compare(["-m", *words] if args.as_module else words, tolerance)
    for line in lines_of(compared):
        complain(line)
    return _write(compared, report, page)


def _number(option: str, text: str | None) -> float | None:
    """The tolerance that an option gives.

    Raises:
        ValueError: it is none.
    """
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{option} {text!r} is not a number of 0 or more")
    return number


def _write(compared: Compared, report: Path | None, page: Path | None) -> int:
    """Write the files that are asked for; the exit status."""
    findings, written = gravest_first(compared.findings), []
    try:
        if report is not None:
            write_report(report, findings, compared=to_dict(compared))
            written.append(display_path(str(report)))
        if page is not None:
            shown = with_repairs(findings, os.getcwd())
            write_page(page, shown, compared=list(summary(compared)))
            written.append(display_path(str(page)))
    except TargetError as error:
        complain(f"gradguard compare: {error}")
        return 2
    if written:
        complain(f"gradguard: report written to {' and '.join(written)}")
    return compared.status
