"""Why a gradient is missing: the closed set of reasons, each with the evidence behind it.

Reasons compare by value, so that tensors with the same reason are reported together. Their texts
hold both numbers, ``[it was|they were]``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pytest_gradguard import pitfalls
from pytest_gradguard.findings import TraceStep, display_path
from pytest_gradguard.runtime.kernel.callsite import Site


def at(site: Site | None) -> str:
    """`` at path:line``, or nothing where the place is not known."""
    return "" if site is None else f" at {display_path(site.path)}:{site.line}"


def step(site: Site | None, message: str) -> tuple[TraceStep, ...]:
    """One step of a trace, or none where the place is not known."""
    return () if site is None else (TraceStep(site.path, site.line, message),)


def in_number(text: str, *, many: bool) -> str:
    """`text` about one tensor, or about several: ``[it was|they were]`` becomes one of them."""
    return re.sub(r"\[([^\[\]|]*)\|([^\[\]|]*)\]", r"\2" if many else r"\1", text)


OR_ALLOW = "or name [it|them] in `allow_none` if [it is|they are] not meant to learn"


@dataclass(frozen=True)
class Reason:
    """Why a tensor has no gradient; `site` is the line to look at, where it is known.

    Attributes:
        kind: its name in findings.
        head: what happened to the tensors, in front of their names.
    """

    kind: ClassVar[str] = ""
    head: ClassVar[str] = "no gradient for"
    site: Site | None

    def text(self) -> str:
        """What happened, as a clause whose subject is the tensors."""
        raise NotImplementedError

    def fix(self) -> str:
        """What to do about it, as one sentence."""
        raise NotImplementedError

    def trace(self) -> tuple[TraceStep, ...]:
        """The places behind the reason, beside `site`."""
        return ()

    def following(self, place: Site) -> Reason:
        """This reason for a tensor that takes its values from others in place, at `place`."""
        return self


@dataclass(frozen=True)
class MeantToStay(Reason):
    """A reason that is no mistake for an EMA or target network.

    Attributes:
        follows: where the tensor takes its values from others in place; None where it does not.
    """

    follows: Site | None = field(default=None, kw_only=True)

    def following(self, place: Site) -> Reason:
        return replace(self, follows=place)

    def text(self) -> str:
        if self.follows is None:
            return self.happened()
        network = "as an EMA or target network is"
        return f"{self.happened()}; [it is|they are] updated in place{at(self.follows)}, {network}"

    def fix(self) -> str:
        if self.follows is None:
            return self.advice()
        return (
            "Name [it|them] in `allow_none`: an EMA or target network does not learn from "
            "gradients."
        )

    def happened(self) -> str:
        """As `text`, where nothing is followed."""
        raise NotImplementedError

    def advice(self) -> str:
        """As `fix`, where nothing is followed."""
        raise NotImplementedError


# -- The tensor and the loss: how the graph between them is missing.


@dataclass(frozen=True)
class NeverBackward(Reason):
    """No backward ran at all while the tensor was watched."""

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
    """The same of a TensorFlow or Keras variable."""

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
    """The tensor was used, and what was made of it was cut from the graph."""

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
    """The tensor was used where gradients were switched off."""

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


# -- The gradient was computed, or would be, and is not on the object that is watched.


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
    """Distributed autograd has the gradient in the context of its backward."""

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
        tape: a tape was asked for the gradients of the others.
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


# -- What a TensorFlow tape recorded, and what it was asked.


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


# -- A gradient arrived, and is of no use.


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
    """A traced function, which nobody looks into, computed the gradient of what holds NaN now."""

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
        by: what the tensor goes through at `site` that has a derivative of zero.
        arrived: where the backward ran, if `site` is another place.
        came: it arrived so; False where it may have been cleared in place.
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


# -- A worker or another thread has what this process lacks.


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
            f"a {self.backend} worker cuts the graph: [it was|they were] pickled for the tasks "
            f"dispatched{at(self.site)}, {self.result} came back without its graph, and the "
            f"backward{at(self.backward)} stopped there (GG103)"
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
    """A backward in a worker gave its gradients to a copy, and they stayed there."""

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
    """The forward ran in a thread in which no tape was recording."""

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


# -- What was seen does not tell why.


@dataclass(frozen=True)
class Unknown(Reason):
    """Nothing that was seen explains it.

    Attributes:
        undecided: what could not be followed; empty where nothing was watched.
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
