"""Makes the finding of a wrong gradient: its parameters, both derivatives, the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_gradguard.checking.quotient import Precision
from pytest_gradguard.checking.search import Wrong
from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding, placed
from pytest_gradguard.gradients.reasons import Reason, in_number
from pytest_gradguard.gradients.report import rank_prefix, shown
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.pitfalls.lost import gg115
from pytest_gradguard.severity import Severity

_NUMBERS = 6
"""For how many parameters the message shows both numbers; the details have all."""

_ALIKE = 1e-3
"""The relative difference up to which two factors count as equal."""


class Cause(NamedTuple):
    """Findings and reasons that explain a wrong gradient.

    Attributes:
        findings: what the guard found.
        reasons: by name, why a parameter has no gradient.
    """

    findings: Sequence[Finding]
    reasons: Mapping[str, Reason]


def findings_of(
    wrong: Sequence[Wrong],
    names: Sequence[str],
    cause: Cause,
    precision: Precision,
    rtol: float,
    site: Site | None,
) -> list[Finding]:
    """The finding of a wrong gradient, and those that explain it.

    Args:
        wrong: the parameters whose gradient is wrong.
        names: all that were checked.
        cause: its explanation.
        precision: that of the loss.
        rtol: the relative difference that counts.
        site: the line of the check.
    """
    explaining = [one for one in cause.findings if one.severity >= Severity.WARNING]
    named = [one.name for one in wrong]
    many = len(named) > 1
    count = f" ({len(named)} of {len(names)} checked)" if many else ""
    whose = shown(named, list(names)).removesuffix(f" ({len(named)})")
    message = (
        f"{rank_prefix()}wrong gradient for {whose}{count}: it is not the derivative of the loss. "
        f"Along a random direction: {_numbers(wrong)}. {_why(explaining, cause.reasons)}"
    )
    factor = _factor(wrong)
    if factor is not None:
        message += f" Each of them is {factor:.4g} times that derivative."
    if precision.unit > 1e-12:
        message += f" (Compared in {precision.name}, up to {100 * rtol:.2g} %.)"
    graver = [one for one in explaining if one.severity is Severity.ERROR]
    fix = f"Apply the fix of {graver[0].code}, below." if graver else None
    description: Details = {
        "parameters": [
            {
                "name": one.name,
                "gradient": None if one.missing else one.measured.gradient,
                "loss": one.measured.loss,
            }
            for one in wrong
        ],
        "precision": precision.name,
        "explained_by": sorted({one.code for one in explaining}),
    }
    return [placed(gg115.finding(message, named, description, site=site, fix=fix)), *explaining]


def _numbers(wrong: Sequence[Wrong]) -> str:
    parts = [
        f"for `{one.name}` "
        + ("there is no gradient" if one.missing else f"it gives {one.measured.gradient:.6g}")
        + f", the loss gives {one.measured.loss:.6g}"
        for one in wrong[:_NUMBERS]
    ]
    if len(wrong) > _NUMBERS:
        parts.append(f"and {len(wrong) - _NUMBERS} more")
    return "; ".join(parts)


def _factor(wrong: Sequence[Wrong]) -> float | None:
    """The common factor of all these gradients, if there is one."""
    if any(one.missing or not one.measured.loss for one in wrong):
        return None
    factors = [one.measured.gradient / one.measured.loss for one in wrong]
    mean = sum(factors) / len(factors)
    alike = all(abs(one - mean) <= _ALIKE * abs(mean) for one in factors)
    return mean if alike and len(factors) > 1 else None


def _why(explaining: Sequence[Finding], reasons: Mapping[str, Reason]) -> str:
    groups: dict[Reason, list[str]] = {}
    for name, reason in reasons.items():
        if reason.kind != "unknown":
            groups.setdefault(reason, []).append(name)
    parts = [
        f"{shown(names, list(reasons))}: " + in_number(f"{reason.text()}.", many=len(names) > 1)
        for reason, names in groups.items()
    ]
    codes = sorted({one.code for one in explaining})
    if codes:
        verb = "explains" if len(codes) == 1 else "explain"
        parts.append(f"{' and '.join(codes)}, below, {verb} it.")
    return " ".join(parts) or "No finding of the guard explains it."
