"""Runs a program twice, in child processes, and reports how the two runs differ."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gradguard.comparing import difference, notes
from pytest_gradguard.comparing.child import NOTES, OUTCOME, Outcome
from pytest_gradguard.comparing.difference import Difference
from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.platforms import HERE

_CHILD = (
    "import sys; from pytest_gradguard.comparing.child import main; sys.exit(main(sys.argv[1:]))"
)
_TIMES, _LEAST = 20, 60.0
"""The limit of the inline run: a multiple of the first one's time, and the least in seconds."""
_PATIENCE = 5.0
_PROCESSES = ("processes", "multiprocess")
_LAST_LINES = 15
NOTHING = "nothing was handed out; nothing to compare"
ROUNDING = (1e-5, 1e-8)


class Tolerance(NamedTuple):
    """The allowed difference of two values; None: rounding only."""

    rtol: float | None = None
    atol: float | None = None


class Compared(NamedTuple):
    """The result of a comparison.

    Attributes:
        status: 0: equal; 1: they differ; 2: they cannot be compared.
        reason: why they cannot, or that no task went to workers.
        difference: the first one.
        findings: of the first run.
        explaining: those that explain the difference, or why the program failed.
        handed: how many tasks ran in the calling process.
        remarks: what was not run inline, and other remarks.
        output: the last lines of the run that failed, if its output was hidden.
    """

    status: int
    reason: str = ""
    difference: Difference | None = None
    findings: Sequence[Finding] = ()
    explaining: Sequence[Finding] = ()
    handed: int = 0
    remarks: Sequence[str] = ()
    output: str = ""


class _Run:
    """One run of the program.

    Args:
        folder: for its files.
        words: the program and its arguments.
        kind: ``"workers"`` or ``"inline"``.
        left: the integrations that are not run inline.
        shown: its output goes where ours does.
        limit: how many seconds it may take.
        patience: how many seconds a task may wait in an inline run.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        kind: str,
        *,
        left: Sequence[str] = (),
        shown: bool = False,
        limit: float | None = None,
        patience: float = 0.0,
    ) -> None:
        folder.mkdir()
        self.notes = folder / NOTES
        self.output = folder / "output"
        options = [kind, str(folder), ",".join(left), str(patience)]
        command = [sys.executable, "-c", _CHILD, *options, *words]
        began = time.monotonic()
        self.timed_out = False
        if shown:
            sys.stdout.flush()
            self.status: int | None = subprocess.run(command, check=False).returncode
        else:
            self.status = self._hidden(command, limit)
        self.seconds = time.monotonic() - began

    def _hidden(self, command: list[str], limit: float | None) -> int | None:
        with open(self.output, "wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                self.timed_out = True
                return None
            finally:
                _end(process)

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome; None if it was killed."""
        path = self.notes.with_name(OUTCOME)
        if not path.exists():
            return None
        known: Outcome = pickle.loads(path.read_bytes())
        return known

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run, and the processes that it has started."""
    if process.poll() is None:
        HERE.end_group(process.pid)
        process.kill()
        process.wait()


def compare(words: Sequence[str], tolerance: Tolerance) -> Compared:
    """Compare a program, given as ``[-m] NAME ARG…``, with itself."""
    with tempfile.TemporaryDirectory(prefix="gradguard-compare-") as name:
        return _compare(Path(name), words, tolerance)


def _compare(folder: Path, words: Sequence[str], tolerance: Tolerance) -> Compared:
    bare = _Run(folder / "workers", words, "workers", shown=True)
    first = bare.outcome
    if bare.status != 0 or first is None:
        findings = () if first is None else first.findings
        reason = f"the program failed (exit status {bare.status})"
        return Compared(2, reason, findings=findings, explaining=explaining(findings))
    said: dict[str, Any] = {"findings": first.findings}
    if not first.calls:
        return _nothing_inline(first.refused, said)
    limit, patience = max(_LEAST, _TIMES * bare.seconds), _PATIENCE + bare.seconds
    inline = _Run(folder / "inline", words, "inline", limit=limit, patience=patience)
    second = inline.outcome
    remarks = []
    if second is not None and second.blocked and second.in_process:
        remarks = [f"left in its workers: {second.blocked}"]
        inline = _Run(
            folder / "without", words, "inline", left=_PROCESSES, limit=limit, patience=patience
        )
        second = inline.outcome
    if inline.timed_out or second is None or second.blocked:
        why = "" if second is None else f": {second.blocked}"
        reason = f"the work of its workers cannot be done in the calling process{why}"
        return Compared(2, reason, remarks=remarks, **said)
    if second.handed == 0:
        return _nothing_inline(second.refused, said, remarks)
    remarks += _left(second.refused)
    said["handed"] = second.handed
    found = _first_difference(bare, inline, tolerance)
    if found is None and inline.status == 0:
        exact = _first_difference(bare, inline, Tolerance(0.0, 0.0))
        if exact is not None:
            remarks.append(f"equal within rounding, but not to the bit: first {_describe(exact)}")
        return Compared(0, remarks=remarks, **said)
    again = _Run(folder / "again", words, "workers", limit=limit)
    if again.outcome is None:
        return Compared(2, "a second run of the program, as it is, did not end", **said)
    by_chance = _first_difference(bare, again, tolerance)
    if by_chance is not None and (found is None or by_chance.number <= found.number):
        reason = "two runs of the program as it is differ, too: " + _describe(by_chance)
        return Compared(2, reason, remarks=[*remarks, *second.unordered], **said)
    if found is None:
        return Compared(
            2,
            f"it failed with the work of its workers in its own process (status {inline.status})",
            remarks=remarks,
            output=inline.last_lines,
            **said,
        )
    known = explaining(first.findings)
    remarks += second.kept
    return Compared(1, difference=found, explaining=known, remarks=remarks, **said)


def _left(refused: Sequence[str]) -> list[str]:
    return [f"left in its workers: {one}" for one in refused]


def _nothing_inline(
    refused: Sequence[str], said: dict[str, Any], remarks: Sequence[str] = ()
) -> Compared:
    """The result if no task ran inline."""
    remarks = [*remarks, *_left(refused)]
    if not remarks:
        return Compared(0, NOTHING, **said)
    reason = "none of the work of its workers can be done in the calling process"
    return Compared(2, reason, remarks=remarks, **said)


def _first_difference(one: _Run, other: _Run, tolerance: Tolerance) -> Difference | None:
    rtol = ROUNDING[0] if tolerance.rtol is None else tolerance.rtol
    atol = ROUNDING[1] if tolerance.atol is None else tolerance.atol
    return difference.first(notes.read(one.notes), notes.read(other.notes), rtol, atol)


def _describe(found: Difference) -> str:
    """When two runs first differ, and in which tensor."""
    return f"{found.moment}, {found.tensor}" if found.tensor else found.moment


_EXPLAINING = ("GG1", "GG3", "GG5")


def explaining(findings: Sequence[Finding]) -> list[Finding]:
    """Errors and warnings that may change a gradient, gravest first."""
    fitting = [
        one
        for one in findings
        if one.severity >= Severity.WARNING and one.code.startswith(_EXPLAINING)
    ]
    return sorted(fitting, key=lambda one: (-one.severity, one.code))
