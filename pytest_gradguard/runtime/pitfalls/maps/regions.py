"""Elements of an array in a memory map, comparable between processes."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

_EFFORT = 10_000
"""How hard NumPy tries to find a common element of two strided regions."""
_BASE = 1 << 20
"""An address for arrays that are compared by position and never read."""


class Region(NamedTuple):
    """The elements of a strided array.

    Attributes:
        offset: of the first element, in bytes from the start of the map.
        shape: their number along each axis.
        strides: the distance along each axis, in bytes.
        size: of one element, in bytes.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "data": (_BASE + self.offset, True),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.size}",
        }

    def overlaps(self, other: Region) -> bool:
        """Whether both are known to have an element in common."""
        numpy: Any = sys.modules["numpy"]
        try:
            return bool(numpy.shares_memory(_array(self), _array(other), max_work=_EFFORT))
        except RuntimeError:  # too hard to tell
            return False


def _array(region: Region) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.asarray(region)
