"""Reasons of TensorFlow tapes, and gradients that arrived with bad values."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gradguard.findings import TraceStep
from pytest_gradguard.gradients.reasons.base import (
    Reason,
    at,
    step,
)
from pytest_gradguard.runtime.kernel.callsite import Site


@dataclass(frozen=True)
class NotProduced(Reason):
    """In the graph, but the operation that used it gave no gradient."""

    kind = "not-produced"
    by: tuple[str, ...] = ()

    def text(self) -> str:
        by = " and ".join(f"`{name}`" for name in self.by)
        used = f" by {by}" if by else ""
        return (
            f"[it is|they are] used{used} in the graph of the loss that ran backward"
            f"{at(self.site)}, but this operation returned no gradient (None) for [it|them]"
        )

    def fix(self) -> str:
        return (
            "Look at the backward of that operation, and of those between it and the loss: "
            "one of them returns None."
        )


@dataclass(frozen=True)
class NotWatched(Reason):
    """A gradient was requested for a source that the tape did not watch."""

    kind = "not-watched-by-tape"
    because: str = ""

    def text(self) -> str:
        return (
            "[it was|they were] not watched by the tape whose gradient"
            f"{at(self.site)} is None: {self.because}"
        )

    def fix(self) -> str:
        return "Call `tape.watch(…)` on [it|them] at the start of the tape."


@dataclass(frozen=True)
class OutsideTape(Reason):
    """The forward pass ran while the tape was not recording."""

    kind = "outside-tape"
    tape: Site | None = None

    def text(self) -> str:
        return (
            f"[it was|they were] read{at(self.site)} while no tape was recording, so the gradient"
            f"{at(self.tape)} is None"
        )

    def fix(self) -> str:
        return "Compute what the loss needs inside the tape's `with` block."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.tape, "the tape is asked for the gradient here")


@dataclass(frozen=True)
class NotBuilt(Reason):
    """A Keras model that has no variables yet."""

    kind = "not-built"

    def text(self) -> str:
        return "the model was never called, so it has no variables yet"

    def fix(self) -> str:
        return "Call the model, or `build` it, before the watch ends."


@dataclass(frozen=True)
class NotFinite(Reason):
    """The gradient holds NaN or infinity."""

    kind = "not-finite"
    head = "bad gradient for"
    value: str = "nan"
    finder: str = "torch.autograd.detect_anomaly()"

    def text(self) -> str:
        return f"a gradient arrived{at(self.site)}, but it holds {self.value}"

    def fix(self) -> str:
        return f"Find the operation with `{self.finder}`."


@dataclass(frozen=True)
class TrainedToNonFinite(NotFinite):
    """A traced function, which cannot be observed, computed the gradient; the value is NaN."""

    head = "bad values in"

    def text(self) -> str:
        return (
            f"[it holds|they hold] {self.value} after a traced function (`tf.function`, `fit`) "
            f"computed [its gradient|their gradients]{at(self.site)}"
        )


@dataclass(frozen=True)
class AllZero(Reason):
    """The gradient is zero everywhere.

    Attributes:
        by: an operation at `site` with a derivative of zero that the tensor passes through.
        arrived: where the backward pass ran, if `site` is another place.
        came: it arrived as zero; False if it may have been cleared in place.
    """

    kind = "all-zero"
    head = "bad gradient for"
    by: str = ""
    arrived: Site | None = None
    came: bool = True

    def text(self) -> str:
        if self.by:
            return (
                f"a gradient arrived{at(self.arrived)}, but it is all zero: `{self.by}`"
                f"{at(self.site)} has a derivative of zero"
            )
        if not self.came:
            return "[its|their] `.grad` is all zero: it arrived so, or was cleared in place"
        return f"a gradient arrived{at(self.site)}, but it is all zero"

    def fix(self) -> str:
        if self.by:
            return f"Use something smooth instead of `{self.by}`, or a straight-through estimator."
        return (
            "Look for a saturated activation, a factor of zero, or a hook that returns zeros, on "
            "the path to the loss."
        )

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.arrived, "the gradient of zero arrives here")
