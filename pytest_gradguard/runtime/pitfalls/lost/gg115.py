"""GG115: a gradient is not the derivative of the loss that it belongs to.

`pytest_gradguard.checking` compares them; the fixture and the function `check_gradients` ask.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.evidence import finding_of

CODE = "GG115"


def finding(
    message: str,
    names: Sequence[str],
    description: Details,
    *,
    site: Site | None,
    fix: str | None = None,
) -> Finding:
    """The finding of parameters whose gradient is wrong.

    Args:
        message: what it says.
        names: the parameters.
        description: what else is known of them.
        site: where the check was asked for.
        fix: what to do; by default what the catalogue says.
    """
    observed: Details = {**description, "object": names[0], "objects": list(names)}
    return finding_of(CODE, message, observed, site=site, fix=fix)
