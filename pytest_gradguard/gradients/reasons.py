"""Why a gradient is missing: the closed set of reasons, each with the evidence behind it.

Reasons compare by value, so that tensors with the same reason are reported together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pytest_gradguard.findings import TraceStep, display_path
from pytest_gradguard.runtime.callsite import Site


def at(site: Site | None) -> str:
    """`` at path:line``, or nothing where the place is not known."""
    return "" if site is None else f" at {display_path(site.path)}:{site.line}"


def step(site: Site | None, message: str) -> tuple[TraceStep, ...]:
    """One step of a trace, or none where the place is not known."""
    return () if site is None else (TraceStep(site.path, site.line, message),)


@dataclass(frozen=True)
class Reason:
    """Why a tensor has no gradient; `site` is the line to look at, where it is known."""

    kind: ClassVar[str] = ""
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


@dataclass(frozen=True)
class NeverBackward(Reason):
    """No backward ran at all while the tensor was watched."""

    kind = "never-backward"
    site: Site | None = None
    failed: str | None = None
    what: str = "backward"

    def text(self) -> str:
        raised = f" (one was begun, and raised {self.failed}{at(self.site)})" if self.failed else ""
        return f"no {self.what} ran while it was watched{raised}"

    def fix(self) -> str:
        call = "`loss.backward()`" if self.what == "backward" else self.what
        return f"Call {call} before the watch ends."


@dataclass(frozen=True)
class Frozen(Reason):
    """The tensor does not require grad."""

    kind = "frozen"
    since: str = ""

    def text(self) -> str:
        return f"it does not require grad{self.since}{at(self.site)}"

    def fix(self) -> str:
        return (
            "Call `requires_grad_()` on it, or name it in `allow_none` if it is frozen on purpose."
        )


@dataclass(frozen=True)
class NotDifferentiable(Reason):
    """The tensor's dtype (integers, booleans) cannot have a gradient."""

    kind = "integer-dtype"
    dtype: str = ""

    def text(self) -> str:
        return f"it has dtype {self.dtype}, which cannot carry a gradient"

    def fix(self) -> str:
        return (
            "Only floating point and complex tensors have gradients: convert it before it is used."
        )


@dataclass(frozen=True)
class Cut(Reason):
    """The tensor was used, and what was made of it was cut from the graph."""

    kind = "cut"
    how: str = ""
    of_itself: bool = False

    def text(self) -> str:
        what = "it" if self.of_itself else "what was computed from it"
        return f"the graph is cut{at(self.site)}: `{self.how}` takes the value of {what} out of it"

    def fix(self) -> str:
        return f"Remove `{self.how}` from the way to the loss."


@dataclass(frozen=True)
class GradModeOff(Reason):
    """The tensor was used where gradients were switched off."""

    kind = "no-grad"
    mode: str = ""
    used: Site | None = None

    def text(self) -> str:
        use = f" (used{at(self.used)})" if self.used is not None else ""
        return f"it was used under `{self.mode}`{at(self.site)}{use}, where no graph is recorded"

    def fix(self) -> str:
        return f"Compute what the loss needs outside of `{self.mode}`."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.used, f"used here under `{self.mode}`")


@dataclass(frozen=True)
class NotInGraph(Reason):
    """The loss that ran backward was not computed from the tensor."""

    kind = "not-in-graph"
    backwards: int = 1
    ruled_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loss: str = "loss"

    def text(self) -> str:
        if self.loss != "loss":
            out = f" (ruled out: {', '.join(self.ruled_out)})" if self.ruled_out else ""
            return (
                f"the {self.loss} of `tape.gradient`{at(self.site)} was not computed from it{out}"
            )
        loss = "the loss that ran backward" if self.backwards == 1 else "any loss that ran backward"
        text = f"it is not part of the graph of {loss}{at(self.site)}: "
        text += "the loss was not computed from it"
        for note in self.notes:
            text += f"; {note}"
        if self.ruled_out:
            text += f" (ruled out: {', '.join(self.ruled_out)})"
        return text

    def fix(self) -> str:
        return "Use it in the forward, or name it in `allow_none` if it is not meant to learn."


@dataclass(frozen=True)
class CutAtWorker(Reason):
    """The tensor went to a worker, and the result came back without its graph."""

    kind = "cut-at-worker"
    backend: str = ""
    result: str = ""
    backward: Site | None = None
    task: tuple[TraceStep, ...] = ()

    def text(self) -> str:
        return (
            f"the graph is cut at a {self.backend} worker: it was pickled for the tasks dispatched"
            f"{at(self.site)}, {self.result} came back without its graph, and the backward"
            f"{at(self.backward)} stopped there"
        )

    def fix(self) -> str:
        return 'Compute what needs a gradient in this process, or use `backend="threading"`.'

    def trace(self) -> tuple[TraceStep, ...]:
        return (
            *step(self.site, "the tasks are dispatched here"),
            *self.task,
            *step(self.backward, "the backward stops at the returned result"),
        )


@dataclass(frozen=True)
class LeftInWorker(Reason):
    """A backward in a worker gave its gradients to a copy, and they stayed there."""

    kind = "left-in-worker"
    backend: str = ""
    task: tuple[TraceStep, ...] = ()

    def text(self) -> str:
        return (
            f"its gradient was computed in a {self.backend} worker, on a copy pickled for the tasks"
            f" dispatched{at(self.site)}, and stayed there (GG106)"
        )

    def fix(self) -> str:
        return (
            "Return the gradients (or the new parameters) from the worker and put them into the "
            "model in this process."
        )

    def trace(self) -> tuple[TraceStep, ...]:
        return (*step(self.site, "the tasks are dispatched here"), *self.task)


@dataclass(frozen=True)
class NonLeaf(Reason):
    """A tensor with history: its `.grad` is never kept."""

    kind = "non-leaf"
    made_by: str = ""
    flowed: bool = False

    def text(self) -> str:
        flowed = "; a gradient did flow through it" + at(self.site) if self.flowed else ""
        return f"it is not a leaf (made by {self.made_by}), and its `.grad` is never kept{flowed}"

    def fix(self) -> str:
        return (
            "Call `retain_grad()` on it before the backward, or watch the leaf that it comes from."
        )


@dataclass(frozen=True)
class Replaced(Reason):
    """The gradient went to the object that stood under this name before."""

    kind = "replaced"
    flowed: bool = True
    how: str = ""

    def text(self) -> str:
        text = "it was replaced after the watch began: another object stands under this name now"
        if self.how:
            text += f" (by `{self.how}`{at(self.site)})"
        if self.flowed:
            text += ", and the gradient went to the old one"
        return text

    def fix(self) -> str:
        return "Replace it before the forward, and build the optimizer afterwards."


@dataclass(frozen=True)
class Gone(Reason):
    """The watched object itself no longer exists."""

    kind = "replaced"
    site: Site | None = None

    def text(self) -> str:
        return (
            "it no longer exists: it was replaced or dropped after the watch began, "
            "and had received no gradient"
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
            f"it received a gradient from the backward{at(self.arrived)}, which was cleared"
            f"{by}{at(self.site)} since"
        )

    def fix(self) -> str:
        return "Read `.grad` before it is cleared."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.arrived, "the gradient arrives here")


@dataclass(frozen=True)
class OtherParameters(Reason):
    """Another model's parameters were trained."""

    kind = "other-parameters"
    backward: Site | None = None
    stepped: int = 0

    def text(self) -> str:
        return (
            f"the backward{at(self.backward)} and the optimizer's step{at(self.site)} went over "
            f"{self.stepped} other parameters, and none of those that are watched"
        )

    def fix(self) -> str:
        return "Compute the loss with the watched model, and give its parameters to the optimizer."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.backward, "the backward of other parameters")


@dataclass(frozen=True)
class NotAsked(Reason):
    """The backward was asked for the gradients of other tensors only."""

    kind = "not-asked"
    verb: str = "backward"
    other: bool = True

    def text(self) -> str:
        if not self.other:
            return f"`{self.verb}`{at(self.site)} was not asked for its gradient"
        return (
            f"it is part of the loss's graph, but the {self.verb}{at(self.site)} was asked for the "
            "gradients of other tensors only (`inputs=`)"
        )

    def fix(self) -> str:
        if not self.other:
            return "Name it among the sources of `tape.gradient`."
        return "Name it in `inputs=`, or leave `inputs=` out."


@dataclass(frozen=True)
class NotProduced(Reason):
    """In the graph, but no gradient came out of the operation that used it."""

    kind = "not-produced"
    by: tuple[str, ...] = ()

    def text(self) -> str:
        by = " and ".join(f"`{name}`" for name in self.by)
        used = f" by {by}" if by else ""
        return (
            f"it is used{used} in the graph of the loss that ran backward{at(self.site)}, "
            "but no gradient came out of it for this input (None)"
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
            f"it was not watched by the tape whose gradient{at(self.site)} is None: {self.because}"
        )

    def fix(self) -> str:
        return "Call `tape.watch(…)` on it at the start of the tape."


@dataclass(frozen=True)
class OtherThread(Reason):
    """The forward ran in a thread in which no tape was recording."""

    kind = "other-thread"
    tape: Site | None = None

    def text(self) -> str:
        return (
            f"it was read{at(self.site)} in a thread in which no tape records: a tape records its "
            f"own thread only, and its gradient{at(self.tape)} is None"
        )

    def fix(self) -> str:
        return "Open the tape inside the function that the thread runs."

    def trace(self) -> tuple[TraceStep, ...]:
        return step(self.tape, "the tape of another thread is asked for the gradient here")


@dataclass(frozen=True)
class OutsideTape(Reason):
    """The forward ran while the tape was not recording."""

    kind = "outside-tape"
    tape: Site | None = None

    def text(self) -> str:
        return (
            f"it was read{at(self.site)} while no tape was recording, so the gradient"
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
    value: str = "nan"

    def text(self) -> str:
        return f"its gradient is not finite (it holds {self.value}){at(self.site)}"

    def fix(self) -> str:
        return "Find the operation with `torch.autograd.detect_anomaly()`."


@dataclass(frozen=True)
class AllZero(Reason):
    """The gradient is zero everywhere."""

    kind = "all-zero"

    def text(self) -> str:
        return f"its gradient is zero everywhere{at(self.site)}"

    def fix(self) -> str:
        return "Look for a saturated activation or a factor of zero on the way to the loss."


@dataclass(frozen=True)
class Unknown(Reason):
    """Nothing that was seen explains it."""

    kind = "unknown"
    site: Site | None = None
    ruled_out: tuple[str, ...] = field(default_factory=tuple)
    undecided: str = ""

    def text(self) -> str:
        out = f"; ruled out: {', '.join(self.ruled_out)}" if self.ruled_out else ""
        why = f": {self.undecided}" if self.undecided else ""
        return f"what was seen does not tell why{why}{out}"

    def fix(self) -> str:
        return "Watch it with `watch_gradients` from before the forward on."
