"""Reasons that a finding of the guard already gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pytest_gradguard.findings import Finding, TraceStep, display_place
from pytest_gradguard.gradients.reasons import Reason
from pytest_gradguard.runtime.kernel import losses
from pytest_gradguard.runtime.kernel.callsite import Site


@dataclass(frozen=True)
class Reported(Reason):
    """A finding of the guard explains the missing gradient.

    Attributes:
        code: the finding's code.
        place: its location, as messages show it.
        message, advice, steps: of the finding.
    """

    kind = "reported"
    code: str
    place: str
    message: str
    advice: str
    steps: tuple[TraceStep, ...]

    def text(self) -> str:
        return f"{self.code} at {self.place}: {self.message.rstrip('.')}"

    def fix(self) -> str:
        return self.advice

    def trace(self) -> tuple[TraceStep, ...]:
        return self.steps


def reported(tensor: Any, backwards: Iterable[Site | None] | None = None) -> Reason | None:
    """The guard's finding on the missing gradient of `tensor`, as a reason.

    Args:
        tensor: a tensor or variable.
        backwards: only findings on backward passes at these call sites.
    """
    loss = losses.of(tensor)
    if loss is None:
        return None
    if backwards is not None:
        asked = None if loss.site is None else loss.site.key
        if asked not in [site.key for site in backwards if site is not None]:
            return None
    finding: Finding | None = loss.evidence.build()
    if finding is None:
        return None
    where = finding.location
    return Reported(
        loss.evidence.site,
        finding.code,
        display_place(where.path, where.line),
        finding.message,
        finding.fix or "",
        finding.trace,
    )
