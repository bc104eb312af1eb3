"""Reasons in the graph: it does not lead from the loss to the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_gradguard.findings import TraceStep
from pytest_gradguard.gradients.reasons.base import (
    OR_ALLOW,
    MeantToStay,
    Reason,
    at,
    step,
)
from pytest_gradguard.runtime.kernel.callsite import Site


@dataclass(frozen=True)
class NeverBackward(Reason):
    """No backward pass ran at all while the tensor was watched."""

    kind = "never-backward"
    site: Site | None = None
    failed: str | None = None
    what: str = "backward"

    def text(self) -> str:
        raised = f" (one started, and raised {self.failed}{at(self.site)})" if self.failed else ""
        return f"no {self.what} ran while [it was|they were] watched{raised}"

    def fix(self) -> str:
        call = "`loss.backward()`" if self.what == "backward" else self.what
        return f"Call {call} before the watch ends."


@dataclass(frozen=True)
class Frozen(MeantToStay):
    """The tensor does not require grad, or did not while the loss was computed."""

    kind = "frozen"
    unfreeze: ClassVar[str] = "Call `requires_grad_()` on [it|them] before the forward pass"
    since: str = ""
    earlier: bool = False

    def happened(self) -> str:
        does = "did not require grad earlier" if self.earlier else "[does|do] not require grad"
        text = f"[it|they] {does}{self.since}{at(self.site)}"
        if self.earlier:
            text += ", and the graph of the loss was recorded without [it|them]"
        return text

    def advice(self) -> str:
        return (
            f"{self.unfreeze}, or name [it|them] in `allow_none` if [it is|they are] frozen on "
            "purpose."
        )


@dataclass(frozen=True)
class NotTrainable(Frozen):
    """A TensorFlow or Keras variable is not trainable."""

    unfreeze: ClassVar[str] = (
        "Make [it|them] trainable (`layer.trainable = True`, `tf.Variable(…, trainable=True)`)"
    )

    def happened(self) -> str:
        return "[it is|they are] not trainable (`trainable=False`)"


@dataclass(frozen=True)
class NotDifferentiable(Reason):
    """The tensor's dtype (integers, booleans) cannot have a gradient."""

    kind = "integer-dtype"
    dtype: str = ""

    def text(self) -> str:
        return f"[it has|they have] dtype {self.dtype}, which cannot carry a gradient"

    def fix(self) -> str:
        return "Only floating-point and complex tensors have gradients: convert it before its use."


@dataclass(frozen=True)
class Cut(MeantToStay):
    """The tensor was used, and a value computed from it was cut from the graph."""

    kind = "cut"
    how: str = ""
    instead: str = ""

    def happened(self) -> str:
        how, without, lacks = self.how.partition(" without ")
        cut = f"`{how}`{at(self.site)}" + (f" without `{lacks}`" if without else "")
        return f"{cut} cuts the graph between [it|them] and the loss"

    def advice(self) -> str:
        return self.instead or f"Leave out `{self.how}` on the path to the loss, {OR_ALLOW}."


@dataclass(frozen=True)
class GradModeOff(MeantToStay):
    """The tensor was used with gradients disabled."""

    kind = "no-grad"
    mode: str = ""
    used: Site | None = None

    def happened(self) -> str:
        use = "" if at(self.used) in ("", at(self.site)) else f" (used{at(self.used)})"
        return (
            f"[it was|they were] used under `{self.mode}`{at(self.site)}{use}, where no graph is "
            "recorded"
        )

    def advice(self) -> str:
        return f"Compute what the loss needs outside of `{self.mode}`, {OR_ALLOW}."

    def trace(self) -> tuple[TraceStep, ...]:
        if at(self.used) == at(self.site):
            return ()
        return step(self.used, f"used here under `{self.mode}`")


@dataclass(frozen=True)
class NotInGraph(MeantToStay):
    """The loss that ran backward was not computed from the tensor."""

    kind = "not-in-graph"
    backwards: int = 1
    ruled_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loss: str = "loss"

    def happened(self) -> str:
        if self.loss != "loss":
            out = f" (ruled out: {', '.join(self.ruled_out)})" if self.ruled_out else ""
            return (
                f"the {self.loss} of `tape.gradient`{at(self.site)} was not computed from "
                f"[it|them]{out}"
            )
        loss = "the loss" if self.backwards == 1 else "any loss"
        text = f"[it is|they are] not in the graph of {loss} that ran backward{at(self.site)}"
        return "; ".join([text, *self.notes])

    def advice(self) -> str:
        return (
            "Use [it|them] in the forward pass, through operations that have a gradient, "
            f"{OR_ALLOW}."
        )
