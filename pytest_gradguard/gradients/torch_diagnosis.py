"""Why a torch tensor has no gradient, from what the log holds. It never guesses."""

from __future__ import annotations

import math
import sys
from typing import Any

from pytest_gradguard.findings import TraceStep
from pytest_gradguard.gradients import reasons, torch_watch
from pytest_gradguard.gradients.flow import reaches
from pytest_gradguard.gradients.torch_log import Backward, Change, Cut, Log, Step
from pytest_gradguard.gradients.torch_watch import Entry, State, TorchWatch

_NO_LOG = Log()
_RULED_OUT = ("no backward ran", "does not require grad", "a non-leaf that keeps no `.grad`")


def verdicts(watch: TorchWatch, *, finite: bool, nonzero: bool) -> dict[str, reasons.Reason | None]:
    """The reason why each watched name has no (good) gradient; None where it has one."""
    return {
        entry.name: _verdict(watch, entry, finite=finite, nonzero=nonzero)
        for entry in watch.entries
    }


def _verdict(
    watch: TorchWatch, entry: Entry, *, finite: bool, nonzero: bool
) -> reasons.Reason | None:
    before = watch.replaced(entry.name)
    if entry.received or any(old.received for old in before):
        return _value_reason(entry, finite=finite, nonzero=nonzero)
    log = watch.log or _NO_LOG
    if any(old.received_late for old in before):
        return _replaced(log, before)
    tensor = entry.ref()
    assert entry.state is not None
    reason = diagnose(log, watch.began, tensor, entry.state, watch)
    if isinstance(reason, reasons.NotInGraph) and before:
        return _replaced(log, before)
    return reason


def _value_reason(entry: Entry, *, finite: bool, nonzero: bool) -> reasons.Reason | None:
    largest = torch_watch.largest(entry) if finite or nonzero else None
    if largest is None:
        return None
    if finite and not math.isfinite(largest):
        return reasons.NotFinite(entry.arrived, "nan" if math.isnan(largest) else "inf")
    if nonzero and largest == 0:
        return reasons.AllZero(entry.arrived)
    return None


def _replaced(log: Log, before: list[Entry]) -> reasons.Reason:
    flowed = any(old.received_late for old in before)
    for change in log.changes.values():
        if change.how.startswith("load_state_dict") and any(
            (tensor := old.ref()) is not None and change.concerns(tensor) for old in before
        ):
            return reasons.Replaced(change.site, flowed, change.how)
    return reasons.Replaced(None, flowed)


def diagnose(
    log: Log, since: int, tensor: Any, state: State, watch: TorchWatch | None = None
) -> reasons.Reason:
    """Why `tensor` (None: it is gone) has received no gradient since `since`."""
    if not state.differentiable:
        made = _maker(log, tensor)
        if made is not None and made.how != "no-grad":
            return reasons.Cut(made.site, made.how)
        return reasons.NotDifferentiable(None, state.description.get("dtype", ""))
    if not state.requires_grad:
        return _without_grad(log, tensor, state)
    backwards = [known for known in log.backwards.values() if known.last > since]
    if not backwards:
        return _never_ran(log, since, tensor)
    if tensor is None:
        return reasons.Gone()
    reached = [known for known in backwards if known.reached(tensor)]
    if not state.is_leaf and not state.retains_grad:
        if reached or not _cuts(log, since, tensor, backwards):
            site = reached[0].site if reached else None
            return reasons.NonLeaf(site, state.made_by, flowed=bool(reached))
    elif reached:
        return _without_outcome(reached[0], tensor)
    return (
        _at_worker(tensor, backwards)
        or _cut(log, since, tensor, backwards)
        or _elsewhere(log, since, tensor, backwards, watch)
        or _not_in_graph(log, since, tensor, backwards)
    )


def explain(tensor: Any) -> reasons.Reason | None:
    """Why any tensor has no gradient now; None where it has one."""
    from pytest_gradguard.gradients import torch_log

    state = torch_watch.state_of(tensor)
    if torch_watch.gradient_of(tensor) is not None:
        return None
    log = torch_log.log
    if log is not None:
        for watch in log.listeners:
            entry = watch.entry_of(tensor) if isinstance(watch, TorchWatch) else None
            if entry is not None and entry.received:
                return _cleared(log, tensor, entry)
        if state.is_leaf and state.requires_grad:
            for known in log.backwards.values():
                if known.reached(tensor) and known.verb == "backward" and not known.restricted:
                    change = _clear_of(log, tensor)
                    if change is not None:
                        return reasons.Cleared(change.site, known.site, change.how)
        return diagnose(log, 0, tensor, state)
    if not state.differentiable:
        return reasons.NotDifferentiable(None, state.description.get("dtype", ""))
    if state.inference:
        return reasons.GradModeOff(None, "torch.inference_mode")
    if not state.requires_grad:
        return reasons.Frozen(None)
    if not state.is_leaf and not state.retains_grad:
        return reasons.NonLeaf(None, state.made_by)
    left = _left_in_worker(tensor)
    if left is not None:
        return left
    ruled_out = ["does not require grad", "a non-leaf that keeps none", "an integer dtype"]
    return reasons.Unknown(None, tuple(ruled_out))


def _clear_of(log: Log, tensor: Any) -> Change | None:
    """The last thing that cleared the gradient of `tensor`."""
    clears = [
        change
        for change in log.changes.values()
        if change.how == "zero_grad()" and change.concerns(tensor)
    ]
    return max(clears, key=lambda change: change.last, default=None)


def _cleared(log: Log, tensor: Any, entry: Entry) -> reasons.Reason:
    change = _clear_of(log, tensor)
    if change is None:
        return reasons.Cleared(None, entry.arrived)
    return reasons.Cleared(change.site, entry.arrived, change.how)


def _maker(log: Log, tensor: Any) -> Cut | None:
    known = None if tensor is None else log.made.get(id(tensor))
    return known if known is not None and known.produced(tensor) else None


def _without_grad(log: Log, tensor: Any, state: State) -> reasons.Reason:
    made = _maker(log, tensor)
    if made is not None:
        return _reason_of(made, tensor)
    if state.inference:
        return reasons.GradModeOff(None, "torch.inference_mode")
    for change in log.changes.values():
        frozen = change.how.startswith("requires_grad_") and tensor is not None
        if frozen and change.concerns(tensor):
            return reasons.Frozen(change.site, f": frozen by `{change.how}`")
    return reasons.Frozen(None)


def _reason_of(cut: Cut, tensor: Any) -> reasons.Reason:
    if cut.how == "no-grad":
        return reasons.GradModeOff(cut.entered or cut.site, cut.mode, cut.site)
    itself = cut.itself.get(id(tensor))
    return reasons.Cut(cut.site, cut.how, itself is not None and itself() is tensor)


def _never_ran(log: Log, since: int, tensor: Any) -> reasons.Reason:
    left = _left_in_worker(tensor)
    if left is not None:
        return left
    if log.failed is not None and log.failed[0] > since:
        return reasons.NeverBackward(log.failed[2], log.failed[1])
    return reasons.NeverBackward()


def _without_outcome(known: Backward, tensor: Any) -> reasons.Reason:
    if known.verb == "autograd.grad" or known.restricted:
        return reasons.NotAsked(known.site, known.verb)
    return reasons.NotProduced(known.site, known.users.get(id(tensor), ()))


def _cuts(log: Log, since: int, tensor: Any, backwards: list[Backward]) -> list[Cut]:
    """The places, before the last backward, where what `tensor` made was taken out of a graph."""
    last = max(known.last for known in backwards)
    return [
        cut
        for cut in log.cuts.values()
        if since < cut.last and cut.first < last and cut.severed(tensor)
    ]


def _cut(log: Log, since: int, tensor: Any, backwards: list[Backward]) -> reasons.Reason | None:
    """The cut between `tensor` and the loss, where the source says that its value goes there."""
    chains = [known.chain for known in backwards]
    judged = [(reaches(cut.chain, chains), cut) for cut in _cuts(log, since, tensor, backwards)]
    likely = [cut for flows, cut in judged if flows] or [
        cut for flows, cut in judged if flows is None
    ]
    if not likely:
        return None
    return _reason_of(max(likely, key=lambda cut: (cut.how != ".item()", -cut.first)), tensor)


def _at_worker(tensor: Any, backwards: list[Backward]) -> reasons.Reason | None:
    """The parallel call whose results came back without their graph, and took a gradient."""
    for known in backwards:
        for severed in known.severed:
            call = severed.call
            shipped = call.shipped.get(id(tensor))
            if shipped is not None and shipped[0]() is tensor:
                task = severed.note.task
                where: tuple[TraceStep, ...] = ()
                if task.path is not None and task.line is not None:
                    text = f"`{task.name}` makes the graph in the worker"
                    where = (TraceStep(task.path, task.line, text),)
                result = f"`{severed.note.path}` of `{task.name}`"
                return reasons.CutAtWorker(call.site, call.backend, result, known.site, where)
    return None


def _left_in_worker(tensor: Any) -> reasons.Reason | None:
    """The parallel call whose worker computed the gradient for a copy, and kept it."""
    kept: Any = sys.modules.get("pytest_gradguard.runtime.left")
    known = None if kept is None or tensor is None else kept.of(tensor)
    if known is None:
        return None
    call, left = known
    where: tuple[TraceStep, ...] = ()
    if left.task.path is not None and left.task.line is not None:
        text = f"`{left.task.name}` runs backward on the copy"
        where = (TraceStep(left.task.path, left.task.line, text),)
    return reasons.LeftInWorker(call.site, call.backend, where)


def _elsewhere(
    log: Log,
    since: int,
    tensor: Any,
    backwards: list[Backward],
    watch: TorchWatch | None,
) -> reasons.Reason | None:
    """Whether backward and optimizer went over none of the watched tensors, but over others."""
    left = _left_in_worker(tensor)
    if left is not None:
        return left
    if watch is None or any(entry.received for entry in watch.entries):
        return None
    watched = [found for entry in watch.entries if (found := entry.ref()) is not None]
    for step in log.steps.values():
        if step.last <= since or any(step.covers(known) for known in watched):
            continue
        for known in backwards:
            both = _stepped_and_reached(step, known)
            if both:
                return reasons.OtherParameters(step.site, known.site, len(step.parameters))
    return None


def _stepped_and_reached(step: Step, known: Backward) -> bool:
    return any(
        (tensor := reference()) is not None and known.reached(tensor)
        for reference in step.parameters.values()
    )


def _not_in_graph(log: Log, since: int, tensor: Any, backwards: list[Backward]) -> reasons.Reason:
    if not all(known.complete for known in backwards):
        return reasons.Unknown(None, _RULED_OUT, "the loss's graph is too large to be searched")
    chains = [known.chain for known in backwards]
    last = max(known.last for known in backwards)
    for cut in log.cuts.values():
        between = cut.partial and since < cut.last and cut.first < last
        if between and reaches(cut.chain, chains) is not False:
            often = f"`{cut.how}`{reasons.at(cut.site)} ran too often to be followed each time"
            return reasons.Unknown(None, _RULED_OUT, often)
    read = [cut for cut in _cuts(log, since, tensor, backwards) if cut.site is not None]
    notes = tuple(
        f"its value was only read{reasons.at(cut.site)}"
        + ("" if cut.how == "no-grad" else f" by `{cut.how}`")
        for cut in read[:2]
    )
    ruled_out = ["frozen", "a cut by `.detach()` and the like", "gradients switched off"]
    latest = max(backwards, key=lambda known: known.last)
    return reasons.NotInGraph(
        latest.site, sum(known.count for known in backwards), tuple(ruled_out), notes
    )
