"""Which elements of an array are meant: parts of one memory map, as two processes see it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

_EFFORT = 10_000
"""How hard NumPy tries to find a common element of two strided regions."""
_BASE = 1 << 20
"""An address that is never read, for arrays of which only the places matter."""


class Region(NamedTuple):
    """The elements of a strided array.

    Attributes:
        offset: where the first one is, in bytes from the start of the map.
        shape: their number along each axis.
        strides: the distance along each axis, in bytes.
        size: the bytes of one.
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
