"""Sketches of tensors: they show whether two are equal, or close, in bounded memory."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any, NamedTuple

_SMALL = 64
"""Up to so many values are kept unchanged."""
_BUCKETS = 64


class Sketch(NamedTuple):
    """The sketch of a tensor.

    Attributes:
        digest: equal if all bits are.
        shape: its shape.
        norm: its Euclidean norm.
        values: the values, if few; otherwise signed sums of some, whose differences are as large as
            those of the values.
        whole: `values` are the values.
    """

    digest: bytes
    shape: tuple[int, ...]
    norm: float
    values: tuple[float, ...]
    whole: bool

    @property
    def size(self) -> int:
        """How many values there are."""
        return math.prod(self.shape)


def sketch(array: Any) -> Sketch:
    """The sketch of a NumPy array."""
    import numpy

    array = numpy.ascontiguousarray(array)
    digest = hashlib.blake2b(array.view(numpy.uint8).data if array.size else b"", digest_size=8)
    flat = array.reshape(-1)
    if not numpy.issubdtype(flat.dtype, numpy.complexfloating):
        flat = flat.astype(numpy.float64)
    norm = float(numpy.linalg.norm(flat))
    whole = flat.size <= _SMALL
    kept = flat if whole else _sums(flat)
    values = tuple(map(float, kept)) if kept.dtype.kind != "c" else _parts(kept)
    return Sketch(digest.digest(), tuple(array.shape), norm, values, whole)


def _parts(values: Any) -> tuple[float, ...]:
    return tuple(float(part) for one in values for part in (one.real, one.imag))


def _sums(flat: Any) -> Any:
    import numpy

    signed = flat * _signs(flat.size)
    missing = -flat.size % _BUCKETS
    return numpy.pad(signed, (0, missing)).reshape(-1, _BUCKETS).sum(0)


@lru_cache(maxsize=16)
def _signs(size: int) -> Any:
    import numpy

    return numpy.random.Generator(numpy.random.PCG64(0)).integers(0, 2, size, numpy.int8) * 2 - 1


def are_close(one: Sketch | None, other: Sketch | None, rtol: float, atol: float) -> bool:
    """Whether two tensors are equal within these tolerances."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape:
        return False
    if one.digest == other.digest:
        return True
    if rtol == atol == 0:
        return False
    if one.whole:
        return all(
            a == b or (a != a and b != b) or abs(a - b) <= atol + rtol * max(abs(a), abs(b))
            for a, b in zip(one.values, other.values, strict=True)
        )
    distance = math.dist(one.values, other.values)
    return distance <= atol * math.sqrt(one.size) + rtol * max(one.norm, other.norm)


def text_of(one: Sketch | None) -> str:
    """A tensor as shown: its values if few, otherwise the norm."""
    if one is None:
        return "None"
    if one.whole and one.size <= 6:
        numbers = ", ".join(f"{value:.6g}" for value in one.values)
        return numbers if one.size == 1 else f"[{numbers}]"
    return f"shape {list(one.shape)}, norm {one.norm:.9g}"
