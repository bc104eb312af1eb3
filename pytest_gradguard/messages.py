"""The warnings and the error that carry findings to a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gradguard.reports.printable import shown_lines
from pytest_gradguard.severity import Severity

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding

__all__ = [
    "ForkDeadlockError",
    "GradGuardConfirmed",
    "GradGuardError",
    "GradGuardSuspicion",
    "GradGuardWarning",
    "WorkerKilledError",
    "warning_for",
]


class GradGuardWarning(UserWarning):
    """A warning of the guard: a finding (see the subclasses), or a fault of its own.

    Filters such as ``ignore::pytest_gradguard.GradGuardWarning`` reach all of them. The message
    begins with the code: ``ignore:GG101:pytest_gradguard.GradGuardWarning`` reaches one pitfall.

    Attributes:
        finding: what was found; None for a fault.
    """

    finding: Finding | None = None

    def __str__(self) -> str:
        return shown_lines(str(self.args[0])) if self.args else ""


class GradGuardSuspicion(GradGuardWarning):
    """A finding of severity warning: likely wrong, or a cost that people do not expect."""


class GradGuardConfirmed(GradGuardWarning):
    """A finding of severity error: the result is wrong, or the program fails or hangs."""


class GradGuardError(Exception):
    """Raised at the guarded call in mode ``"error"``.

    Attributes:
        findings: what was found, gravest first.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(sorted(findings, key=lambda finding: -finding.severity))
        super().__init__(self.findings)

    def __str__(self) -> str:
        from pytest_gradguard.reports.text import blocks

        return "\n".join(blocks(self.findings))

    def __reduce__(self) -> tuple[type[GradGuardError], tuple[tuple[Finding, ...]]]:
        return (type(self), (self.findings,))


class ForkDeadlockError(RuntimeError):
    """Raised at a parallel call in place of a wait that would never have ended (GG303)."""


class WorkerKilledError(RuntimeError):
    """Raised at a parallel call that would have waited forever for a killed worker (GG306)."""


def warning_for(finding: Finding) -> GradGuardWarning:
    """The warning that says `finding`, of severity warning or error, in a few lines."""
    from pytest_gradguard.interactive import cell_of

    text = f"{finding.code} {finding.name}"
    if cell_of(finding.location.path) is not None:
        text += f" at {finding.place}"  # the file name that Python shows says nothing
    text += f": {finding.message}"
    if finding.fix:
        text += f" Fix: {finding.fix}"
    confirmed = finding.severity is Severity.ERROR
    warning = (GradGuardConfirmed if confirmed else GradGuardSuspicion)(text)
    warning.finding = finding
    return warning
