"""Reasons outside the graph: the gradient is on another object, or in another process."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_gradguard import pitfalls
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
class InContext(Reason):
    """Distributed autograd keeps the gradient in the context of its backward pass."""

    kind = "in-context"

    def text(self) -> str:
        return (
            f"`torch.distributed.autograd.backward`{at(self.site)} keeps [its gradient|their "
            "gradients] in its context, and leaves `.grad` empty"
        )

    def fix(self) -> str:
        return (
            "Inside the context, step with `torch.distributed.optim.DistributedOptimizer`, or copy "
            "the gradients: `for p, g in torch.distributed.autograd.get_gradients(context_id)"
            ".items(): p.grad = g`."
        )


@dataclass(frozen=True)
class Replaced(Reason):
    """The gradient went to the earlier object of this name, or the optimizer holds that.

    Attributes:
        stepped: an optimizer that steps at `site` holds the old object.
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
    """A gradient arrived, and has been cleared since."""

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
        stepped: how many others an optimizer updated at `site`; 0 if none did.
        copied: where the others were copied from these.
        tape: a tape computed gradients of the others.
    """

    kind = "other-parameters"
    backward: Site | None = None
    stepped: int = 0
    copied: Site | None = None
    tape: bool = False

    def happened(self) -> str:
        if self.tape:
            return (
                f"`tape.gradient`{at(self.backward)} was asked for the gradients of another "
                "model's variables, and of none of these"
            )
        step = ""
        if self.stepped:
            step = f" and the optimizer's step{at(self.site)} updated {self.stepped}"
        text = f"the backward{at(self.backward)} reached other parameters{step}, and none of these"
        if self.copied is not None:
            text += f": the loss was computed from a copy made{at(self.copied)}"
        return text

    def advice(self) -> str:
        return f"Compute the loss with the watched model, {OR_ALLOW} (an EMA or target network)."

    def trace(self) -> tuple[TraceStep, ...]:
        backward = step(self.backward, "the backward of other parameters") if self.stepped else ()
        return (*step(self.copied, "copied here"), *backward)


@dataclass(frozen=True)
class NotAsked(Reason):
    """The backward pass computed only the gradients of other tensors, as requested."""

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


@dataclass(frozen=True)
class CutAtWorker(Reason):
    """The tensor went to a worker, and the result came back without its graph.

    Attributes:
        case: the case of GG103's advice that fits the workers.
    """

    kind = "cut-at-worker"
    backend: str = ""
    result: str = ""
    backward: Site | None = None
    task: tuple[TraceStep, ...] = ()
    tape: bool = False
    case: str = ""

    def text(self) -> str:
        if self.tape:
            return (
                f"{self.result} used [it|them] in a {self.backend} worker (dispatched"
                f"{at(self.site)}), where no tape records: the gradient{at(self.backward)} is None "
                "(GG105)"
            )
        return (
            f"[it was|they were] pickled for {self.backend} workers{at(self.site)}; "
            f"{self.result} came back without a graph, so the backward pass{at(self.backward)} "
            "stopped there (GG103)"
        )

    def fix(self) -> str:
        if self.tape:
            return pitfalls.get("GG105").advice
        return pitfalls.get("GG103").advice_for(self.case)

    def trace(self) -> tuple[TraceStep, ...]:
        return (
            *step(self.site, "the tasks are dispatched here"),
            *self.task,
            *step(
                self.backward,
                "the tape is asked for the gradient here"
                if self.tape
                else "the backward stops at the returned result",
            ),
        )


@dataclass(frozen=True)
class LeftInWorker(Reason):
    """A backward pass in a worker gave its gradients to a copy, and they were left there."""

    kind = "left-in-worker"
    backend: str = ""
    task: tuple[TraceStep, ...] = ()

    def text(self) -> str:
        return (
            f"[its|their] gradient was computed in a {self.backend} worker, on a copy pickled for "
            f"the tasks dispatched{at(self.site)}, and stayed there (GG106)"
        )

    def fix(self) -> str:
        return pitfalls.get("GG106").advice

    def trace(self) -> tuple[TraceStep, ...]:
        return (*step(self.site, "the tasks are dispatched here"), *self.task)


@dataclass(frozen=True)
class OtherThread(Reason):
    """The forward pass ran in a thread in which no tape was recording."""

    kind = "other-thread"
    tape: Site | None = None

    def text(self) -> str:
        return (
            f"[it was|they were] read{at(self.site)} in a thread in which no tape records: a tape "
            f"records its own thread only, and its gradient{at(self.tape)} is None"
        )

    def fix(self) -> str:
        return "Open the tape inside the function that the thread runs."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.tape, "the tape of another thread is asked for the gradient here")


@dataclass(frozen=True)
class Unknown(Reason):
    """No observation explains it.

    Attributes:
        undecided: what could not be followed; empty if nothing was watched.
    """

    kind = "unknown"
    site: Site | None = None
    ruled_out: tuple[str, ...] = field(default_factory=tuple)
    undecided: str = ""

    def text(self) -> str:
        if not self.undecided:
            return "[it was|they were] not watched during the forward pass, so the cause is unknown"
        text = f"the cause is unknown: {self.undecided}"
        return text + (f" (ruled out: {', '.join(self.ruled_out)})" if self.ruled_out else "")

    def fix(self) -> str:
        if self.undecided:
            return "Find out how far the gradient comes: `retain_grad()` on what is in between."
        return "Watch [it|them] with `watch_gradients` from before the forward pass."
