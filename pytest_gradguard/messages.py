"""The warnings and the error that carry findings to a program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pytest_gradguard.findings import Finding, Severity

__all__ = ["ForkDeadlockError", "GradGuardError", "GradGuardWarning", "warning_for"]


class GradGuardWarning(UserWarning):
    """A finding at run time, or a fault of the guard's own.

    The finding's severity and code have subclasses of their own: filters such as
    ``ignore::pytest_gradguard.GradGuardWarning`` reach all of them.
    """

    finding: Finding | None = None


class GradGuardInfo(GradGuardWarning):
    """A finding of severity info."""


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
        from pytest_gradguard.reports.text import render

        return "\n\n".join("\n".join(render(finding)) for finding in self.findings)

    def __reduce__(self) -> tuple[type[GradGuardError], tuple[tuple[Finding, ...]]]:
        return (type(self), (self.findings,))


class ForkDeadlockError(RuntimeError):
    """Raised at a parallel call in place of a wait that would never have ended (GG303)."""


@cache
def _category(severity: Severity) -> type[GradGuardWarning]:
    return {
        Severity.INFO: GradGuardInfo,
        Severity.WARNING: GradGuardSuspicion,
        Severity.ERROR: GradGuardConfirmed,
    }[severity]


def warning_for(finding: Finding) -> GradGuardWarning:
    """The warning that says `finding` in a few lines."""
    text = f"{finding.code} {finding.name}: {finding.message}"
    if finding.fix:
        text += f" Fix: {finding.fix}"
    warning = _category(finding.severity)(text)
    warning.finding = finding
    return warning
