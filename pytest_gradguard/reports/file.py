"""A run's report as a file, JSON or a page: checked before it starts, written at its end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gradguard.disabled import NOTHING, VARIABLE
from pytest_gradguard.findings import Finding, ReadError, report
from pytest_gradguard.reports.overview import linked
from pytest_gradguard.reports.target import Target, TargetError
from pytest_gradguard.tallies import Tally

__all__ = ["check_apart", "check_writable", "write_page", "write_report"]


def check_writable(path: Path) -> None:
    """Make sure that a report may be written to `path`, without leaving anything behind.

    Raises:
        ValueError: it may not; the message is one line that names `path` and the reason.
    """
    try:
        with Target(str(path), over_reports=True):  # several ranks may do this at once
            pass
    except TargetError as error:
        raise ValueError(str(error)) from None


def check_apart(report: Path | None, page: Path | None) -> None:
    """Make sure that the page would not replace the report of the same run.

    Raises:
        ValueError: it would; the message is one line that names the file.
    """
    if report is None or page is None or os.path.realpath(report) != os.path.realpath(page):
        return
    if page.is_file() or not page.exists():  # not a terminal, or /dev/null
        raise ValueError(f"{page}: the JSON report and the HTML page need a file each")


def write_report(
    path: Path,
    findings: Iterable[Finding],
    calls: Iterable[Tally] = (),
    *,
    guarded: str | None = None,
    compared: Mapping[str, Any] | None = None,
) -> None:
    """Write the JSON object of a whole run to `path`.

    Args:
        path: the file.
        findings: what was found.
        calls: the parallel calls.
        guarded: what the run was guarded in, where that is not all of it: the report says so.
        compared: what came of a comparison of two runs.

    Raises:
        TargetError: the file cannot be written; an earlier one is as it was.
    """
    # `default=str`: details may hold what JSON has no word for; a name beats a lost report.
    whole = report(linked(findings), _unwatched(guarded))
    if guarded is not None:
        whole["guarded"] = guarded
    if compared is not None:
        whole["compare"] = compared
    called = [call.to_dict() for call in calls]
    if called:
        whole["calls"] = called
    text = json.dumps(whole, indent=2, default=str, ensure_ascii=False)
    with Target(str(path)) as target:
        target.write(text + "\n")


def _unwatched(guarded: str | None) -> list[ReadError]:
    """What the errors of a report say of a run that watched nothing: it only looks clean."""
    if guarded != NOTHING:
        return []
    return [ReadError("<environment>", 1, f"{VARIABLE} is set: nothing was watched")]


def write_page(
    path: Path,
    findings: Iterable[Finding],
    calls: Iterable[Tally] = (),
    *,
    base: str | None = None,
    guarded: str | None = None,
    compared: Sequence[str] = (),
) -> None:
    """Write the page of a whole run to `path`.

    Args:
        path: the file.
        findings: what was found.
        calls: the parallel calls.
        base: the folder that the paths of both are relative to; by default the current one.
        guarded: what the run was guarded in, where that is not all of it.
        compared: what came of a comparison of two runs, in lines.

    Raises:
        TargetError: the file cannot be written; an earlier one is as it was.
    """
    from pytest_gradguard.reports.page import page  # only now: it imports jinja2
    from pytest_gradguard.reports.this_run import described

    try:
        text = page(
            findings, calls, base=base, guarded=guarded, compared=compared, about=described()
        )
    except Exception as error:  # a fault of ours, which must not end the program's run
        raise TargetError(f"{path}: the page could not be made: {error!r}") from error
    with Target(str(path)) as target:
        target.write(text)
