"""Findings as text: how they travel in reports, to the JUnit file and from xdist workers."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from pytest_gradguard.findings import Finding, Location, Severity, TraceStep

__all__ = ["pack", "relative", "unpack"]


def relative(finding: Finding, base: str) -> Finding:
    """`finding` with its paths relative to the folder `base` where they lie below it.

    A test may change the current folder: only the one of pytest's invocation counts.
    """
    where = replace(finding.location, path=_below(finding.location.path, base))
    trace = tuple(replace(step, path=_below(step.path, base)) for step in finding.trace)
    return replace(finding, location=where, trace=trace)


def _below(path: str, base: str) -> str:
    prefix = base.rstrip(os.sep) + os.sep
    return path[len(prefix) :] if path.startswith(prefix) else path


def pack(findings: Iterable[Finding], shown: Collection[tuple[Any, ...]] = ()) -> str:
    """`findings` as one line of JSON; `shown` has the keys that a failure shows."""
    entries = [
        {
            **finding.to_dict(),
            "location": vars(finding.location),
            "trace": [vars(step) for step in finding.trace],
            "shown": finding.key in shown,
        }
        for finding in findings
    ]
    return json.dumps(entries, default=str)


def unpack(text: str) -> tuple[list[Finding], set[tuple[Any, ...]]]:
    """What `pack` wrote: the findings, and the keys of those that are shown.

    Raises:
        ValueError, KeyError, TypeError: `text` is something else.
    """
    findings = []
    keys = set()
    for entry in json.loads(text):
        shown = entry.pop("shown")
        entry["severity"] = Severity.parse(entry["severity"])
        entry["location"] = Location(**entry["location"])
        entry["trace"] = tuple(TraceStep(**step) for step in entry["trace"])
        finding = Finding(**entry)
        findings.append(finding)
        if shown:
            keys.add(finding.key)
    return findings, keys
