"""What the linter can repair of what the guard has found, for the page of findings.

The guard sees what happens and knows nothing of source; the linter reads the files in which
findings lie, and a repair that it has for the same code at the same statement is shown with them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pytest_gradguard.findings import Finding, Repair
from pytest_gradguard.runtime.kernel.faults import fault

__all__ = ["with_repairs"]


def with_repairs(findings: Iterable[Finding], base: str) -> list[Finding]:
    """`findings`, each with the repair that the linter has for it.

    Args:
        findings: what was found; paths are relative to `base`.
        base: a folder.
    """
    findings = list(findings)
    try:
        known = _repairs({_file(finding, base) for finding in findings})
    except Exception as error:  # the findings are worth more than their repairs
        fault(error)
        return findings
    return [
        replace(finding, edits=_repair(finding, known[_file(finding, base), finding.code]))
        for finding in findings
    ]


def _file(finding: Finding, base: str) -> str:
    return os.path.abspath(os.path.join(base, finding.location.path))


def _repairs(files: Iterable[str]) -> defaultdict[tuple[str, str], list[dict[str, Any]]]:
    """What the linter finds in `files` and can repair, by file and code."""
    from gradguard_lint.project.configuration import Configurations  # a run without findings
    from gradguard_lint.run import Request, run  # has no use for the linter

    found = defaultdict(list)
    paths = tuple(sorted(path for path in files if path.endswith(".py") and os.path.isfile(path)))
    if paths:
        # One process and no cache: at the end of a program nothing is started or left behind.
        for raw in run(Request(paths, Configurations(), jobs=1, cache=False)).findings:
            if raw["edits"] is not None:
                found[os.path.abspath(raw["path"]), raw["code"]].append(raw)
    return found


def _repair(finding: Finding, candidates: Iterable[dict[str, Any]]) -> Repair | None:
    """The repair among `candidates` for the statement of `finding`; None unless there is one."""
    where = finding.location
    last = where.end_line or where.line
    repairs = {
        Repair.from_dict(raw["edits"])
        for raw in candidates
        if raw["line"] <= last and where.line <= raw["end_line"]
    }
    return repairs.pop() if len(repairs) == 1 else None
