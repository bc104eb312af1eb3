"""Compares a gradient with difference quotients, and finds the parameters whose part is wrong.

A few random directions over all parameters come first. If one disagrees, halves of the parameters
are tested, and halves of these. A parameter is wrong only if two quotients show it, with different
steps and directions, one of them at another point: a loss may have a kink at the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from pytest_gradguard.checking.quotient import Measured, Precision, Verdict, measure
from pytest_gradguard.checking.ranks import Ranks

_SEED = 20_021
_AWAY = 1e-3
"""The distance of the other point, relative to the size of the parameters."""
_TRIES = 6
_CERTAIN = 2
"""How many quotients have to show that a parameter is wrong."""
_NOISE = 1e4
"""By how many units in the last place a loss may change between evaluations."""


class Point(Protocol):
    """A point where a loss is evaluated; see `TorchPoint`."""

    names: list[str]

    @property
    def precision(self) -> Precision:
        """The precision of the losses."""

    def loss(self, direction: Any, members: Sequence[int], length: float) -> float:
        """The loss at a nearby point."""

    def gradient(self) -> tuple[float, list[Any]]:
        """The loss here, and the gradients."""

    def direction(self, seed: int) -> Any:
        """A random direction."""

    def shares(self, gradients: Any, direction: Any) -> list[float]:
        """The contribution of each parameter."""

    def is_split(self, index: int) -> bool:
        """Whether ranks hold parts of it."""

    def move(self, seed: int, length: float) -> None:
        """Move the point."""


class NotDeterministic(ValueError):
    """The closure returns different losses at the same point."""


class Wrong(NamedTuple):
    """A parameter whose gradient disagrees with the loss.

    Attributes:
        name: of the parameter.
        measured: both derivatives along one direction of only this parameter.
        missing: it has no gradient at all.
    """

    name: str
    measured: Measured
    missing: bool


class Search:
    """One check of a gradient.

    Args:
        point: the parameters and their loss.
        ranks: the ranks that check together.
        rtol: the allowed relative difference.
        step: the step, relative to the size of the parameters.

    Attributes:
        evaluations: how often the loss was evaluated.
    """

    def __init__(self, point: Point, ranks: Ranks, rtol: float, step: float | None) -> None:
        self._point = point
        self._ranks = ranks
        self._rtol = rtol
        self._step = step
        self._here = 0.0
        self._gradients: list[Any] = []
        self._alone: dict[int, Measured] = {}
        self.evaluations = 0

    def run(self, directions: int) -> list[Wrong]:
        """The parameters whose gradient is wrong.

        Raises:
            NotDeterministic: the loss changes from one evaluation to the next.
        """
        __tracebackhide__ = True
        self._settle()
        everything = range(len(self._point.names))
        for seed in range(directions):
            self._alone.clear()
            if not self._agrees(everything, seed):
                wrong = self._confirmed(list(self._suspects(list(everything), seed)))
                if wrong:
                    return wrong
        return []

    @property
    def rtol(self) -> float:
        """The relative difference that counts, in the precision of the loss."""
        return max(self._rtol, self._point.precision.rtol)

    def _settle(self) -> None:
        """Evaluate the gradient twice: workers may initialise on the first call.

        Raises:
            NotDeterministic: the loss changes from one evaluation to the next.
        """
        __tracebackhide__ = True
        before = self._gradient()
        for _ in range(2):
            last, before = before, self._gradient()
            if abs(last - before) <= _NOISE * self._point.precision.unit * abs(before):
                return
        raise NotDeterministic(
            f"check_gradients: two evaluations at the same point gave the losses {last!r} and "
            f"{before!r}, so no difference quotient can be formed; let the closure use the same "
            "data each time, and draw from generators that it holds or that are global"
        )

    def _gradient(self) -> float:
        __tracebackhide__ = True
        self.evaluations += 1
        own, self._gradients = self._point.gradient()
        self._here = self._ranks.loss(own)
        return self._here

    # -- quotients ---------------------------------------------------------------------------------

    def _measure(self, members: Sequence[int], seed: int, step: float) -> Measured:
        direction = self._point.direction(_SEED + seed)

        def at(length: float) -> float:
            self.evaluations += 1
            return self._ranks.loss(self._point.loss(direction, members, length))

        gradients = self._derivatives(members, direction)
        measured = measure(at, self._here, gradients, step, self._point.precision)
        if len(members) == 1:
            self._alone[members[0]] = measured
        return measured

    def _derivatives(self, members: Sequence[int], direction: Any) -> list[float]:
        """The derivative along `direction` by the gradient, on each rank."""
        shares = self._point.shares(self._gradients, direction)
        whole = sum(shares[index] for index in members if not self._point.is_split(index))
        part = sum(shares[index] for index in members if self._point.is_split(index))
        shares_of_ranks = self._ranks.exchange([whole, part])
        parts = sum(part for _, part in shares_of_ranks)
        return [whole + parts for whole, _ in shares_of_ranks]

    def _steps(self) -> tuple[float, ...]:
        if self._step is None:
            return self._point.precision.steps
        return (self._step, self._step / 10, self._step / 3)

    def _agrees(self, members: Sequence[int], seed: int) -> bool:
        """Whether the gradient of `members` agrees up to the visible digits."""
        precision = self._point.precision
        for step in self._steps()[:2]:
            verdict = self._measure(members, seed, step).verdict(precision.close)
            if verdict is not Verdict.UNSURE:
                return verdict is Verdict.AGREES
        return precision.rtol > 0  # with few visible digits, no result is certain

    # -- parameters --------------------------------------------------------------------------------

    def _suspects(self, members: list[int], seed: int) -> Iterator[int]:
        """Parameters among `members` whose gradients do not agree with the loss."""
        if len(members) == 1 or all(self._gradients[index] is None for index in members):
            yield from members
            return
        first, second = members[: len(members) // 2], members[len(members) // 2 :]
        first_agrees = self._agrees(first, seed)
        if not first_agrees:
            yield from self._suspects(first, seed)
        if first_agrees or not self._agrees(second, seed):
            yield from self._suspects(second, seed)

    def _confirmed(self, suspects: Sequence[int]) -> list[Wrong]:
        """The `suspects` that two quotients show to be wrong, one of them at another point."""
        missing = {index for index in suspects if self._gradients[index] is None}
        here = {index: self._alone.get(index) or self._judge(index, 0) for index in suspects}
        remaining = [one for one in suspects if self._verdict(here[one]) is not Verdict.AGREES]
        if not remaining:
            return []
        self._point.move(_SEED, _AWAY)
        self._gradient()
        found: list[Wrong] = []
        for index in remaining:
            differing = [here[index]] * (self._verdict(here[index]) is Verdict.DIFFERS)
            for number in range(1, _TRIES):
                measured = self._judge(index, number)
                verdict = self._verdict(measured)
                if verdict is Verdict.AGREES:
                    break
                if verdict is Verdict.DIFFERS:
                    differing.append(measured)
                if len(differing) == _CERTAIN:
                    found.append(Wrong(self._point.names[index], differing[0], index in missing))
                    break
        self._point.move(_SEED, -_AWAY)
        self._gradient()
        return found

    def _verdict(self, measured: Measured) -> Verdict:
        return measured.verdict(self.rtol)

    def _judge(self, index: int, number: int) -> Measured:
        """The derivative along a direction of only one parameter."""
        steps = self._steps()
        seed = 1_000 * (index + 1) + number
        return self._measure([index], seed, steps[number % len(steps)])
