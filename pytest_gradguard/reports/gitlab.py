"""GitLab's Code Quality report, which merge requests show.

https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.reports.fingerprint import SourceLine, fingerprints
from pytest_gradguard.reports.overview import explanations, folded

__all__ = ["render"]

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(findings: Iterable[Finding], source_line: SourceLine) -> str:
    """The report as JSON: a list with one entry a finding, with what explains it."""
    both = folded(findings)
    prints = fingerprints([finding for finding, _ in both], source_line)
    entries = []
    for (finding, because), fingerprint in zip(both, prints, strict=True):
        where = finding.location.to_dict()
        begin = {"line": where["line"], "column": where["column"]}
        end = {"line": where["end_line"], "column": where["end_column"]}
        place = ""
        if finding.location.cell is not None:  # the lines of a cell are not those of its file
            begin = end = {"line": 1, "column": 1}
            place = f"{finding.place}: "
        text = [finding.message, *(f"({line})" for _, line in explanations(finding, because))]
        entries.append(
            {
                "description": f"{place}{finding.code}: {' '.join(text)}",
                "check_name": f"{finding.code} {finding.name}",
                "fingerprint": fingerprint,
                "severity": _SEVERITIES[finding.severity],
                "location": {
                    "path": where["path"],
                    "positions": {"begin": begin, "end": end},
                },
            }
        )
    return json.dumps(entries, indent=2) + "\n"
