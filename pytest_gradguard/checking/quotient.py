"""The difference quotient of a loss along a direction, and its error."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SURE = 5.0
"""A difference counts from this multiple of the quotient's estimated error."""
_NAMES = {2.0**-52: "float64", 2.0**-23: "float32", 2.0**-7: "bfloat16"}
_FAR = 0.3
_FAR_ROUNDINGS = 100.0
_ROUNDINGS = 16.0
"""By how many units in the last place rounding may change a loss."""


class Precision(NamedTuple):
    """The precision of losses, and the comparisons that it allows.

    Attributes:
        name: the dtype.
        unit: the distance of 1 to the next number.
        steps: the steps to try, relative to the size of the parameters; the first is the best.
        rtol: the least relative difference that counts.
        close: at that relative difference, no further steps are tried.
    """

    name: str
    unit: float
    steps: tuple[float, ...]
    rtol: float
    close: float

    @classmethod
    def of(cls, unit: float) -> Precision:
        """The precision of a dtype, by the distance of 1 to its next number.

        The error of a central quotient is the least for a step of the cube root of the unit.
        """
        name = _NAMES.get(unit, "float16")
        if unit < 1e-12:
            return cls(name, unit, (1e-5, 1e-6, 1e-7), 0.0, 1e-8)
        best = unit ** (1 / 3)
        return cls(name, unit, (2 * best, best / 2, 4 * best), 4 * best, best)


class Verdict(enum.Enum):
    """The result of comparing a quotient with a gradient."""

    AGREES = enum.auto()
    DIFFERS = enum.auto()
    UNSURE = enum.auto()


class Measured(NamedTuple):
    """The derivative along a direction.

    Attributes:
        loss: that of the loss.
        gradient: that of the gradient, on the rank where it differs most.
        rounding: the error of the first from rounding alone.
        error: its whole estimated error.
    """

    loss: float
    gradient: float
    rounding: float
    error: float

    def verdict(self, rtol: float) -> Verdict:
        """Whether both are equal, up to `rtol` of the larger one."""
        difference = abs(self.loss - self.gradient)
        allowed = rtol * max(abs(self.loss), abs(self.gradient))
        if difference <= allowed + self.rounding:
            return Verdict.AGREES
        return Verdict.DIFFERS if difference > allowed + _SURE * self.error else Verdict.UNSURE


def measure(
    at: Callable[[float], float],
    here: float,
    gradients: Sequence[float],
    step: float,
    precision: Precision,
) -> Measured:
    """Measure the derivative along a direction.

    Args:
        at: the loss that many lengths of the direction away.
        here: the loss at the point itself.
        gradients: the derivative by the gradient, on each rank.
        step: the length of a step.
        precision: that of the loss.
    """
    ahead, behind = at(step), at(-step)
    wide = (ahead - behind) / (2 * step)
    largest = max(abs(ahead), abs(behind), abs(here))
    rounding = _ROUNDINGS * precision.unit * largest / step
    close = precision.close * max(abs(wide), *(abs(one) for one in gradients))
    if all(abs(wide - one) <= close + rounding for one in gradients):
        return _farthest(wide, gradients, rounding, rounding)
    steps_are_short = not precision.rtol  # otherwise there may be a kink within each
    if steps_are_short and all(_is_far(wide, one, rounding) for one in gradients):
        return _farthest(wide, gradients, rounding, rounding)
    half = step / 2
    near_ahead, near_behind = at(half), at(-half)
    near = (near_ahead - near_behind) / step
    # For a smooth loss the curvature term shrinks with the step; at a kink it does not.
    bend = (ahead - 2 * here + behind) / step
    near_bend = (near_ahead - 2 * here + near_behind) / half
    error = abs(wide - near) + abs(2 * near_bend - bend) + rounding
    return _farthest((4 * near - wide) / 3, gradients, rounding, error)


def _is_far(loss: float, gradient: float, rounding: float) -> bool:
    """Whether two derivatives are so different that no second step is needed."""
    difference = abs(loss - gradient)
    return difference > max(_FAR * max(abs(loss), abs(gradient)), _FAR_ROUNDINGS * rounding)


def _farthest(loss: float, gradients: Sequence[float], rounding: float, error: float) -> Measured:
    gradient = max(gradients, key=lambda one: abs(one - loss))
    return Measured(loss, gradient, rounding, error)
