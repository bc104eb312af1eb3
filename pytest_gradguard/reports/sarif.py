"""SARIF 2.1.0, which code scanning services and editors read.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_gradguard import __version__, pitfalls
from pytest_gradguard.findings import (
    Cut,
    Edit,
    Finding,
    Location,
    ReadError,
    Repair,
    Severity,
    TraceStep,
    display_path,
)
from pytest_gradguard.pitfalls import Pitfall
from pytest_gradguard.reports.fingerprint import SourceLine, fingerprints
from pytest_gradguard.reports.overview import Folded, explanations, folded

__all__ = ["render"]

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_ROOT = "%SRCROOT%"
_FINGERPRINT = "gradguardPlace/v1"


def render(
    findings: Iterable[Finding],
    source_line: SourceLine,
    errors: Iterable[ReadError] = (),
    cut: Iterable[Cut] = (),
) -> str:
    """The log of one run as JSON, in ASCII.

    Paths are relative to the current folder, under ``%SRCROOT%``, where they lie below it. Columns
    count characters. A repair of the linter's is a `fix`, the chain a `codeFlow`; what explains
    another of `findings` is one of its `relatedLocations`.

    Args:
        findings: what was found.
        source_line: returns a line of a file, or an empty string.
        errors: what could not be used.
        cut: what was not followed to its end.
    """
    both, errors = folded(findings), list(errors)
    codes = sorted({finding.code for finding, _ in both})
    prints = fingerprints([finding for finding, _ in both], source_line)
    run = {
        "tool": {
            "driver": {
                "name": "gradguard",
                "version": __version__,
                "semanticVersion": __version__,
                "informationUri": pitfalls.HOME,
                "rules": [_rule(pitfalls.get(code)) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "invocations": [
            {
                "executionSuccessful": not errors,
                "toolExecutionNotifications": [
                    *(_notification(error, "error", error.message) for error in errors),
                    *(_notification(one, "note", _not_followed(one)) for one in cut),
                ],
            }
        ],
        "results": [
            _result(one, codes.index(one[0].code), fingerprint)
            for one, fingerprint in zip(both, prints, strict=True)
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(pitfall: Pitfall) -> dict[str, Any]:
    return {
        "id": pitfall.code,
        "name": pitfall.name,
        "shortDescription": {"text": f"{pitfall.title}."},
        "fullDescription": {"text": pitfall.happens},
        "help": {
            "text": f"{pitfall.why}\n\n{pitfall.fix}",
            "markdown": f"**Why.** {pitfall.why}\n\n**How to fix it.** {pitfall.fix}",
        },
        "helpUri": pitfall.page,
        "defaultConfiguration": {"level": _LEVELS[pitfall.severity]},
    }


def _result(one: Folded, index: int, fingerprint: str) -> dict[str, Any]:
    finding, because = one
    where = finding.location.to_dict()
    cell = finding.location.cell
    location = _location(finding.location.path, _region_of(finding.location))
    if where["function"]:
        location["logicalLocations"] = [
            {"fullyQualifiedName": where["function"], "kind": "function"}
        ]
    text = finding.message + (f" {finding.fix}" if finding.fix else "")
    if cell is not None:  # the lines of a cell are not those of its file
        text = f"Cell {cell}, line {finding.location.line}: {text}"
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {_FINGERPRINT: fingerprint},
        "occurrenceCount": finding.count,
    }
    if finding.trace:
        steps = [
            {"location": _location(step.path, _line_of(step), step.message)}
            for step in finding.trace
        ]
        last = {"location": {**location, "message": {"text": finding.message}}}
        result["codeFlows"] = [{"threadFlows": [{"locations": [*steps, last]}]}]
    if because:
        result["relatedLocations"] = [
            _location(other.location.path, _region_of(other.location), text)
            for other, text in explanations(finding, because)
        ]
    if finding.edits is not None:
        result["fixes"] = [_fix(finding.edits)]
    return result


def _fix(repair: Repair) -> dict[str, Any]:
    changes: dict[str, list[Edit]] = defaultdict(list)
    for edit in repair.edits:
        changes[edit.path].append(edit)
    return {
        "description": {"text": f"{repair.message} ({repair.applicability})"},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(path),
                "replacements": [
                    {
                        "deletedRegion": _region(edit.to_dict()),
                        "insertedContent": {"text": edit.content},
                    }
                    for edit in edits
                ],
            }
            for path, edits in changes.items()
        ],
    }


def _location(path: str, region: dict[str, int], message: str | None = None) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": _artifact(path)}
    if region:
        place["region"] = region
    location: dict[str, Any] = {"physicalLocation": place}
    if message is not None:
        location["message"] = {"text": message}
    return location


def _line_of(step: TraceStep | ReadError | Cut) -> dict[str, int]:
    return {"startLine": step.line} if step.cell is None else {}


def _region_of(where: Location) -> dict[str, int]:
    return _region(where.to_dict()) if where.cell is None else {}


def _region(where: dict[str, Any]) -> dict[str, int]:
    return {
        "startLine": where["line"],
        "startColumn": where["column"],
        "endLine": where["end_line"],
        "endColumn": where["end_column"],
    }


def _artifact(path: str) -> dict[str, str]:
    shown = display_path(path)
    if os.path.isabs(shown):
        return {"uri": Path(shown).as_uri()}
    encoded = quote(shown.encode("utf-8", "surrogateescape"))
    return {"uri": encoded, "uriBaseId": _ROOT}


def _notification(about: ReadError | Cut, level: str, text: str) -> dict[str, Any]:
    cell = "" if about.cell is None else f"Cell {about.cell}, line {about.line}: "
    return {
        "level": level,
        "message": {"text": cell + text},
        "locations": [_location(about.path, _line_of(about))],
    }


def _not_followed(one: Cut) -> str:
    what = f"`{one.function}`" if one.function is not None else "The module's own code"
    return f"{what} is not followed to its end: {one.reason}."
