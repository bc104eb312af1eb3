"""GG115: a gradient is not the derivative of its loss.

`pytest_gradguard.checking` compares them, for the fixture and the function `check_gradients`.
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
        message: its message.
        names: the parameters.
        description: more details of them.
        site: where the check was requested.
        fix: the fix; by default the catalogue's.
    """
    observed: Details = {**description, "object": names[0], "objects": list(names)}
    return finding_of(CODE, message, observed, site=site, fix=fix)
