"""GG104: a watched tensor received no gradient.

`pytest_gradguard.gradients` watches the tensors and finds the reasons, on request of the fixture
and the context manager `watch_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding, TraceStep
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.evidence import finding_of

CODE = "GG104"


def finding(
    message: str,
    names: Sequence[str],
    description: Details,
    *,
    reason: str,
    site: Site | None,
    fix: str | None = None,
    trace: tuple[TraceStep, ...] = (),
) -> Finding:
    """The finding of tensors that lack their gradient for one reason, or for several.

    Args:
        message: its message.
        names: the tensors.
        description: the first of them.
        reason: the kind of the reason.
        site: the line to blame.
        fix: the fix; by default the catalogue's.
        trace: the steps that led to it.
    """
    observed: Details = {
        "framework": "torch",
        **description,
        "object": names[0],
        "objects": list(names),
        "reason": reason,
    }
    return finding_of(CODE, message, observed, site=site, fix=fix, trace=trace)
