"""What gradguard says: one `Finding` shape for lint and runtime, and its JSON.

The JSON has one schema for both origins (``schema: 1``); lines and columns count from 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from pytest_gradguard.details import FindingDetails
from pytest_gradguard.dynamic_code import file_named
from pytest_gradguard.interactive import cell_of, other_execution_of
from pytest_gradguard.severity import Severity as Severity

Origin = Literal["lint", "runtime"]
Applicability = Literal["safe", "unsafe"]
"""A safe repair keeps what the program means, but for the defect; an unsafe one may change it."""

Lane = Literal["parent", "worker"]
"""Where a step happens: in the program's own thread, or where the tasks run."""

SCHEMA = 1


def file_of(path: str, cell: int | None) -> str:
    """What lines are counted in: the file at `path`, or one cell of that notebook."""
    return f"{path}:cell {cell}" if cell else path


class _InFile:
    """What is at a path, and in a notebook in one of its cells."""

    path: str
    cell: int | None

    @property
    def file(self) -> str:
        """What the lines are counted in: the path, and in a notebook the cell."""
        return file_of(self.path, self.cell)

    def _in_file(self) -> dict[str, Any]:
        cell = cell_of(self.path) if self.cell is None else self.cell
        return {"path": display_path(self.path), **({} if cell is None else {"cell": cell})}


@dataclass(frozen=True)
class Location(_InFile):
    """A place in source. `path` is as found; reports show it relative to the current folder.

    In a notebook `cell` counts the code cells that are not empty from 1, as Jupyter does when it
    runs all; `executed` is the number that Jupyter shows, where it is another one. The lines are
    those of the cell.
    """

    path: str
    line: int
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None
    function: str | None = None
    cell: int | None = None
    executed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        executed = other_execution_of(self.path) if self.cell is None else self.executed
        return {
            **self._in_file(),
            **({} if executed is None else {"execution_count": executed}),
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line if self.end_line is not None else self.line,
            "end_column": self.end_column if self.end_column is not None else self.column,
            "function": self.function,
        }


@dataclass(frozen=True)
class TraceStep(_InFile):
    """One link of the chain that led to a finding: where it is, in which lane, what happens."""

    path: str
    line: int
    message: str
    cell: int | None = None
    lane: Lane | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._in_file(),
            "line": self.line,
            "message": self.message,
            **({} if self.lane is None else {"lane": self.lane}),
        }


class Reference(NamedTuple):
    """Which other finding is meant: its code and where it is."""

    code: str
    path: str
    line: int
    column: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "path": display_path(self.path)}


@dataclass(frozen=True, order=True)
class Edit(_InFile):
    """A piece of a file, up to `end_line` and `end_column`, that `content` takes the place of.

    An insertion ends where it begins. In `content` each line ends as the lines of its file do.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    content: str
    cell: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._in_file(),
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "content": self.content,
        }


@dataclass(frozen=True)
class Repair:
    """Edits that together repair one finding. No two of them overlap."""

    applicability: Applicability
    message: str
    edits: tuple[Edit, ...]

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Repair:
        """The repair that `to_dict` describes, or the linter's plain data."""
        edits = tuple(Edit(**edit) for edit in entry["edits"])
        return cls(entry["applicability"], entry["message"], edits)

    @property
    def is_safe(self) -> bool:
        return self.applicability == "safe"

    def to_dict(self) -> dict[str, Any]:
        return {
            "applicability": self.applicability,
            "message": self.message,
            "edits": [edit.to_dict() for edit in self.edits],
        }


@dataclass(frozen=True, repr=False)
class Finding:
    """One report of one pitfall at one place.

    `message` says what happens, and `fix` what to do about it; `edits` is a repair, where the
    linter has one. `trace` is the chain of places behind it, and `explains` the graver findings
    that this one is a part of. Equal findings (same code, location and test) are one, with a
    `count`.
    """

    code: str
    name: str
    severity: Severity
    origin: Origin
    message: str
    location: Location
    fix: str | None = None
    edits: Repair | None = None
    trace: tuple[TraceStep, ...] = ()
    test: str | None = None
    count: int = 1
    details: FindingDetails = field(default_factory=FindingDetails)
    explains: tuple[Reference, ...] = ()

    @property
    def place(self) -> str:
        """Where it is, as people read it."""
        where = self.location
        return display_place(where.file, where.line, where.column, where.executed)

    def __str__(self) -> str:
        fix = f" Fix: {self.fix}" if self.fix else ""
        return f"{self._head()} at {self.place}: {self.message}{fix}"

    def __repr__(self) -> str:
        return f"<Finding {self._head()} at {self.place}>"

    def _repr_html_(self) -> str:
        import html  # for notebooks alone

        return f"<p>{html.escape(str(self))}</p>"

    def _head(self) -> str:
        return f"{self.severity.label}[{self.code}] {self.name}"

    @property
    def key(self) -> tuple[str, str, int, int, str | None]:
        """What makes two findings equal: code, location and test."""
        where = self.location
        return (self.code, where.file, where.line, where.column, self.test)

    @property
    def claim(self) -> tuple[str, str, int, int, str]:
        """What it says of which place, in whichever test: people read equal claims once."""
        return (*self.key[:-1], self.message)

    @property
    def identity(self) -> tuple[object, ...]:
        """Its claim and its test."""
        return (*self.claim, self.test)

    @property
    def reference(self) -> Reference:
        """What another finding refers to this one by."""
        where = self.location
        return Reference(self.code, where.file, where.line, where.column)

    def to_dict(self) -> dict[str, Any]:
        details: FindingDetails = {**self.details}
        if self.explains:
            details["explains"] = [reference.to_dict() for reference in self.explains]
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity.label,
            "origin": self.origin,
            "message": self.message,
            "fix": self.fix,
            "edits": self.edits.to_dict() if self.edits is not None else None,
            "location": self.location.to_dict(),
            "trace": [step.to_dict() for step in self.trace],
            "test": self.test,
            "count": self.count,
            "details": details,
        }


@dataclass(frozen=True)
class ReadError(_InFile):
    """A file or place that could not be used; the other files are still reported."""

    path: str
    line: int
    message: str
    cell: int | None = None

    @property
    def place(self) -> str:
        """Where it is, as people read it."""
        return display_place(self.file, self.line)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._in_file(),
            "line": self.line,
            "message": self.message,
        }


@dataclass(frozen=True)
class Cut(_InFile):
    """A function that was not followed to its end, for the `reason`; None: a module's own code."""

    path: str
    line: int
    function: str | None
    reason: str
    cell: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._in_file(),
            "line": self.line,
            "function": self.function,
            "reason": self.reason,
        }


def merge(
    findings: Iterable[Finding], by: Callable[[Finding], Hashable] = attrgetter("key")
) -> list[Finding]:
    """Join equal findings into one with the sum of their counts and the highest severity.

    The order of first appearance is kept, and the first one's text, unless a later one is graver.
    What they explain adds up.

    Args:
        findings: those to join.
        by: what is the same in equal findings.
    """
    merged: dict[Hashable, Finding] = {}
    for finding in findings:
        known = merged.setdefault(by(finding), finding)
        if known is not finding:
            graver = finding if finding.severity > known.severity else known
            merged[by(finding)] = replace(
                graver,
                count=known.count + finding.count,
                explains=tuple(dict.fromkeys(known.explains + finding.explains)),
                details=_joint_details(graver, known, finding),
            )
    return list(merged.values())


def _joint_details(graver: Finding, *both: Finding) -> FindingDetails:
    """The details of `graver`, with the ranks and the messages of both findings."""
    details = graver.details
    ranks = {rank for one in both for rank in one.details.get("ranks", ())}
    if ranks:
        details = {**details, "ranks": sorted(ranks)}
    messages = [said for one in both for said in one.details.get("messages", (one.message,))]
    if len(set(messages)) > 1:
        details = {**details, "messages": list(dict.fromkeys(messages))}
    return details


def report(
    findings: Iterable[Finding], errors: Iterable[ReadError] = (), cut: Iterable[Cut] = ()
) -> dict[str, Any]:
    """The JSON object (as Python dicts and lists) of a whole run, equal findings merged."""
    from pytest_gradguard import __version__

    joined = merge(findings)
    summary = {severity.label: 0 for severity in reversed(Severity)}
    for finding in joined:
        summary[finding.severity.label] += 1
    return {
        "schema": SCHEMA,
        "tool": {"name": "gradguard", "version": __version__},
        "findings": [finding.to_dict() for finding in joined],
        "summary": summary,
        "errors": [error.to_dict() for error in errors],
        "cut": [one.to_dict() for one in cut],
    }


def placed(finding: Finding) -> Finding:
    """`finding`, with the files that its workers could not name."""
    trace = tuple(replace(step, path=file_named(step.path)) for step in finding.trace)
    where = replace(finding.location, path=file_named(finding.location.path))
    return replace(finding, location=where, trace=trace)


def display_place(
    path: str, line: int, column: int | None = None, executed: int | None = None
) -> str:
    """A place as people read it: ``src/a.py:12:5``, in a notebook ``cell 3:12:5``.

    Where Jupyter shows another number than that of the cell, it follows: ``cell 3:12:5 (In [7])``.
    """
    place = f"{display_path(path)}:{line}" + ("" if column is None else f":{column}")
    executed = executed or other_execution_of(path)
    return place if executed is None else f"{place} (In [{executed}])"


def display_path(path: str) -> str:
    """`path` relative to the current folder where it lies below it, with forward slashes.

    A cell of a notebook is shown by its number: ``cell 3``.
    """
    path = file_named(path)
    cell = cell_of(path)
    if cell is not None:
        return f"cell {cell}"
    if not path or path.startswith("<"):
        return path
    try:
        here = os.getcwd()
        absolute = os.path.abspath(path)
        around = os.path.normcase(os.path.join(here, ""))
        if absolute == here or os.path.normcase(absolute).startswith(around):
            path = os.path.relpath(absolute, here)
    except (OSError, ValueError):  # a deleted current folder, or another drive
        pass
    return path.replace(os.sep, "/")
