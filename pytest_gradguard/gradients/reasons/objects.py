"""The gradient was computed, or would be, and is not on the object that is watched."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gradguard.findings import TraceStep
from pytest_gradguard.gradients.reasons.base import (
    FOLLOWS,
    OR_ALLOW,
    MeantToStay,
    Reason,
    at,
    following_text,
    step,
)
from pytest_gradguard.runtime.callsite import Site


@dataclass(frozen=True)
class NonLeaf(Reason):
    """A tensor with history: its `.grad` is never kept."""

    kind = "non-leaf"
    made_by: str = ""
    flowed: bool = False

    def text(self) -> str:
        flowed = "; a gradient did flow through [it|them]" + at(self.site) if self.flowed else ""
        return (
            f"[it is not a leaf|they are not leaves] (made by {self.made_by}), and a non-leaf "
            f"keeps no `.grad`{flowed}"
        )

    def fix(self) -> str:
        return (
            "Call `retain_grad()` on [it|them] before the backward, or watch the "
            "[leaf that it comes|leaves that they come] from."
        )


@dataclass(frozen=True)
class Replaced(Reason):
    """The gradient went to the object that stood under this name before, or the optimizer did.

    Attributes:
        stepped: an optimizer steps at `site`, and has the old one.
    """

    kind = "replaced"
    flowed: bool = True
    how: str = ""
    stepped: bool = False

    def text(self) -> str:
        text = (
            "[it was|they were] replaced after the watch began: "
            "[another object has its name|other objects have their names] now"
        )
        if self.how:
            text += f" (by `{self.how}`{at(self.site)})"
        if self.flowed:
            text += ", and the gradient went to the old [one|ones]"
        if self.stepped:
            text += (
                f", and the optimizer that steps{at(self.site)} still has the old [one|ones], "
                "without a gradient"
            )
        return text

    def fix(self) -> str:
        return "Replace [it|them] before the forward pass, and build the optimizer afterwards."


@dataclass(frozen=True)
class Gone(Reason):
    """The watched object itself no longer exists."""

    kind = "replaced"
    site: Site | None = None

    def text(self) -> str:
        return (
            "[it no longer exists: it was|they no longer exist: they were] replaced or dropped "
            "after the watch began, and had received no gradient"
        )

    def fix(self) -> str:
        return "Watch the tensor that the loss is computed from."


@dataclass(frozen=True)
class Cleared(Reason):
    """A gradient arrived, and was cleared since."""

    kind = "cleared"
    arrived: Site | None = None
    how: str = ""

    def text(self) -> str:
        by = f" by `{self.how}`" if self.how else ""
        return (
            f"[it|they] received a gradient from the backward{at(self.arrived)}, which was cleared"
            f"{by}{at(self.site)} since"
        )

    def fix(self) -> str:
        return "Read `.grad` before it is cleared."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.arrived, "the gradient arrives here")


@dataclass(frozen=True)
class OtherParameters(MeantToStay):
    """Another model's parameters were trained.

    Attributes:
        backward: where the loss of the others ran backward.
        stepped: how many others an optimizer updated at `site`; 0 where none did.
        copied: where the others were copied from these.
    """

    kind = "other-parameters"
    backward: Site | None = None
    stepped: int = 0
    copied: Site | None = None

    def text(self) -> str:
        step = ""
        if self.stepped:
            step = f" and the optimizer's step{at(self.site)} updated {self.stepped}"
        text = f"the backward{at(self.backward)} reached other parameters{step}, and none of these"
        if self.copied is not None:
            text += f": the loss was computed from a copy made{at(self.copied)}"
        return text + (following_text(self.follows) if self.follows else "")

    def fix(self) -> str:
        if self.follows:
            return FOLLOWS
        return f"Compute the loss with the watched model, {OR_ALLOW} (an EMA or target network)."

    def trace(self) -> tuple[TraceStep, ...]:
        backward = step(self.backward, "the backward of other parameters") if self.stepped else ()
        return (*step(self.copied, "copied here"), *backward)


@dataclass(frozen=True)
class NotAsked(Reason):
    """The backward was asked for the gradients of other tensors only."""

    kind = "not-asked"
    verb: str = "backward"
    other: bool = True

    def text(self) -> str:
        if not self.other:
            return f"`{self.verb}`{at(self.site)} was not asked for [its gradient|their gradients]"
        if self.verb == "torch.func.grad":
            return (
                f"the transform of `torch.func`{at(self.site)} was asked for the gradients of "
                "other arguments only (`argnums`)"
            )
        return (
            f"[it is|they are] in the graph of the loss, but `{self.verb}`{at(self.site)} was "
            "asked for the gradients of other tensors only (`inputs=`)"
        )

    def fix(self) -> str:
        if not self.other:
            return "Name [it|them] among the sources of `tape.gradient`."
        if self.verb == "torch.func.grad":
            return "Pass [it|them] as an argument that `argnums` names."
        return "Name [it|them] in `inputs=`, or call `backward()` without `inputs=`."
