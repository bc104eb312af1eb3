"""A dask array is passed to a Keras model: it is computed whole, in this process."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import Tensor
from gradguard_lint.rules.base import Report

CODE = "GG402"


def check(program: Program) -> Iterator[Report]:
    for effect in program.library_uses("keras fit"):
        if any(
            isinstance(atom, Tensor) and atom.framework == "dask"
            for value in effect.payload.values
            for atom in inner(value, 1)
        ):
            yield Report(
                effect.site,
                f"{effect.what} computes the whole dask array in this process: nothing is "
                "distributed.",
            )
