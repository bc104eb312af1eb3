"""What a TensorFlow tape recorded, and what it was asked."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gradguard.findings import TraceStep
from pytest_gradguard.gradients.reasons.base import Reason, at, step
from pytest_gradguard.runtime.callsite import Site


@dataclass(frozen=True)
class NotProduced(Reason):
    """In the graph, but no gradient came out of the operation that used it."""

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
    """The tape was asked for a gradient of something that it did not watch."""

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
    """The forward ran while the tape was not recording."""

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
