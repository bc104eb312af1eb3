"""Findings as text: how they travel in reports, to the JUnit file and from xdist workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pytest_gradguard.findings import Finding, Location, Reference, Severity, TraceStep
from pytest_gradguard.runtime.kernel import plain_data
from pytest_gradguard.tallies import Tally

__all__ = ["pack", "pack_calls", "relative", "relative_call", "unpack", "unpack_calls"]


def relative(finding: Finding, base: str) -> Finding:
    """`finding` with its paths relative to the folder `base` where they lie below it.

    A test may change the current folder: only the one of pytest's invocation counts.
    """
    where = replace(finding.location, path=_below(finding.location.path, base))
    trace = tuple(replace(step, path=_below(step.path, base)) for step in finding.trace)
    explains = tuple(one._replace(path=_below(one.path, base)) for one in finding.explains)
    return replace(finding, location=where, trace=trace, explains=explains)


def relative_call(tally: Tally, base: str) -> Tally:
    """`tally` with its path relative to the folder `base` where it lies below it."""
    where = tally.location
    return replace(tally, location=replace(where, path=_below(where.path, base)))


def pack_calls(tallies: Iterable[Tally]) -> str:
    """`tallies` as one line of JSON."""
    return json.dumps([{**vars(one), "location": vars(one.location)} for one in tallies])


def unpack_calls(text: str) -> list[Tally]:
    """What `pack_calls` wrote.

    Raises:
        ValueError, KeyError, TypeError: `text` is something else.
    """
    entries = json.loads(text)
    tallies = [Tally(**{**entry, "location": Location(**entry["location"])}) for entry in entries]
    plain_data.loads(plain_data.dumps(tallies), list[Tally])
    return tallies


def _below(path: str, base: str) -> str:
    prefix = base.rstrip(os.sep) + os.sep
    return path[len(prefix) :] if path.startswith(prefix) else path


_NO_MARKS: Mapping[tuple[object, ...], str] = {}


def pack(findings: Iterable[Finding], marks: Mapping[tuple[object, ...], str] = _NO_MARKS) -> str:
    """`findings` as one line of JSON; `marks` says what has become of some, by their keys."""
    entries = [
        {
            **finding.to_dict(),
            "location": vars(finding.location),
            "trace": [vars(step) for step in finding.trace],
            "details": dict(finding.details),
            "explains": finding.explains,
            "mark": marks.get(finding.key),
        }
        for finding in findings
    ]
    return json.dumps(entries, default=str)


def unpack(text: str) -> tuple[list[Finding], dict[tuple[Any, ...], str]]:
    """What `pack` wrote: the findings, and their marks by their keys.

    Raises:
        ValueError, KeyError, TypeError: `text` is something else.
    """
    findings = []
    marks = {}
    for entry in json.loads(text):
        mark = entry.pop("mark")
        entry["severity"] = Severity.parse(entry["severity"])
        entry["location"] = Location(**entry["location"])
        entry["trace"] = tuple(TraceStep(**step) for step in entry["trace"])
        entry["explains"] = tuple(Reference(*one) for one in entry["explains"])
        entry["details"] = dict(entry["details"])
        finding = Finding(**entry)
        plain_data.loads(plain_data.dumps(replace(finding, details={})), Finding)
        findings.append(finding)
        if mark:
            marks[finding.key] = mark
    return findings, marks
