"""The oldest releases of libraries that the guard watches.

`tests/versions` makes its matrix from this table, and `docs/versions.md` shows which were run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

OLDEST: Mapping[str, str] = {
    "dask": "2025.5.0",
    "distributed": "2025.5.0",
    "joblib": "1.2.0",
    "keras": "3.4.0",
    "tensorflow": "2.16.1",
    "torch": "2.4.0",
}
"""By package, as programs import them."""


def too_old(package: str, version: object) -> str | None:
    """Why this version of a package is not watched; None if it is new enough, or unknown."""
    oldest = OLDEST.get(package)
    numbers = re.match(r"\d+(?:\.\d+)*", str(version))
    if oldest is None or numbers is None or _parts(numbers[0]) >= _parts(oldest):
        return None
    return f"{oldest} is the oldest that it watches"


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
