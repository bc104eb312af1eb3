"""The sizes of parameters' numbers, which determine the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def scales_of(values: Sequence[Any]) -> list[float]:
    """The size of each parameter's numbers; for zeros, the usual size of the others."""
    sizes = [float((abs(one) ** 2).mean()) ** 0.5 if math.prod(one.shape) else 0 for one in values]
    known = sorted(size for size in sizes if size > 0 and math.isfinite(size))
    usual = known[len(known) // 2] if known else 1.0
    return [size if size > usual / 1000 else usual for size in sizes]
