"""Finds the reason why a torch tensor has no gradient, from the log, without guessing."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from pytest_gradguard.findings import TraceStep
from pytest_gradguard.gradients import reasons, torch_cuts, torch_entries
from pytest_gradguard.gradients.flow import reaches, reads_back
from pytest_gradguard.gradients.reported import reported
from pytest_gradguard.gradients.torch_entries import Entry, State
from pytest_gradguard.gradients.torch_log import Log, recorder
from pytest_gradguard.gradients.torch_records import (
    DISTRIBUTED,
    FROZEN,
    SCRIPTED,
    WRITTEN,
    Backward,
    Change,
    Cut,
    Step,
)
from pytest_gradguard.gradients.torch_watch import TorchWatch
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.pitfalls.lost import gg103

_NO_LOG = Log()


class JudgedWatch(TorchWatch):
    """The torch part of one watch, with its verdicts."""

    def _verdict(self, entry: Entry, *, finite: bool, nonzero: bool) -> reasons.Reason | None:
        log = self.log or _NO_LOG
        before = self.replaced(entry.name)
        if entry.received or any(old.received for old in before):
            return _stepped_without(log, entry, before) or _value_reason(
                log, entry, finite=finite, nonzero=nonzero
            )
        if any(old.received_late for old in before):
            return _replaced(log, before)
        tensor = entry.ref()
        if tensor is not None and log.used_from_context(tensor):
            return None
        assert entry.state is not None
        reason = diagnose(log, self.began, tensor, entry.state, self)
        if isinstance(reason, reasons.NotInGraph) and before:
            return _replaced(log, before)
        return reason


def _value_reason(log: Log, entry: Entry, *, finite: bool, nonzero: bool) -> reasons.Reason | None:
    largest = torch_entries.largest(entry) if finite or nonzero else None
    if largest is None:
        return None
    if finite and not math.isfinite(largest):
        return reasons.NotFinite(entry.arrived, "nan" if math.isnan(largest) else "inf")
    if nonzero and largest == 0:
        return _all_zero(log, entry)
    return None


def _all_zero(log: Log, entry: Entry) -> reasons.Reason:
    chains = [known.chain for known in log.backwards.values()]
    tensor = entry.ref()
    for flat in log.flat.values():
        if tensor is not None and flat.severed(tensor) and reaches(flat.chain, chains):
            return reasons.AllZero(flat.site, flat.how, entry.arrived)
    return reasons.AllZero(entry.arrived)


def _replaced(log: Log, before: list[Entry]) -> reasons.Reason:
    flowed = any(old.received_late for old in before)
    for change in log.changes.values():
        if change.how.startswith("load_state_dict") and any(
            (tensor := old.ref()) is not None and change.concerns(tensor) for old in before
        ):
            return reasons.Replaced(change.site, flowed, change.how)
    return reasons.Replaced(None, flowed)


def _stepped_without(log: Log, entry: Entry, before: list[Entry]) -> reasons.Reason | None:
    """The reason if an optimizer still updates the tensor that `entry` replaced."""
    tensor = entry.ref()
    steps = [step for step in log.steps.values() if step.last > entry.since]
    if tensor is None or any(step.covers(tensor) for step in steps):
        return None
    for old in before:
        replaced = None if old.received or old.received_late else old.ref()
        for step in steps:
            if replaced is not None and step.covers(replaced):
                return reasons.Replaced(step.site, flowed=False, stepped=True)
    return None


def diagnose(
    log: Log, since: int, tensor: Any, state: State, watch: TorchWatch | None = None
) -> reasons.Reason:
    """Why `tensor` (None: it no longer exists) got no gradient after event `since`."""
    reason = _reason(log, since, tensor, state, watch)
    follows = None if tensor is None else _follower(log, since, tensor)
    return reason if follows is None else reason.following(follows)


def _reason(
    log: Log, since: int, tensor: Any, state: State, watch: TorchWatch | None
) -> reasons.Reason:
    if not state.differentiable:
        made = _maker(log, tensor)
        if made is not None and made.exit is not None:
            return torch_cuts.reason_of(made)
        return reasons.NotDifferentiable(None, state.description.get("dtype") or "")
    if not state.requires_grad:
        return _without_grad(log, tensor, state)
    backwards = [known for known in log.backwards.values() if known.last > since]
    if not backwards:
        return _never_ran(log, since, tensor)
    if tensor is None:
        return reasons.Gone()
    reached = [known for known in backwards if known.reached(tensor, since)]
    cuts = torch_cuts.cuts_of(log, since, tensor, backwards)
    if not state.is_leaf and not state.retains_grad:
        cut = (
            None
            if reached
            else torch_cuts.confirmed(cuts, tensor) or torch_cuts.likely(cuts, backwards)
        )
        if cut is not None:
            return torch_cuts.reason_of(cut)
        return reasons.NonLeaf(reached[0].site if reached else None, state.made_by, bool(reached))
    for known in reached:
        if known.verb == DISTRIBUTED:
            return reasons.InContext(known.site)
        if known.asked_for_all:
            return _without_outcome(known, tensor)
    return (
        _at_worker(tensor, backwards)
        or _left_in_worker(tensor)
        or reported(tensor, [known.site for known in backwards])
        or torch_cuts.reason_by_cut(cuts, tensor, backwards, watch, sure=bool(reached))
        or _not_asked(reached, backwards)
        or _frozen_earlier(log, since, tensor, backwards, watch)
        or _only_other_tensors(log, since, backwards, watch)
        or _not_in_graph(log, since, cuts, backwards)
    )


def explain(tensor: Any) -> reasons.Reason | None:
    """Why any tensor has no (good) gradient now; None if it has one."""
    state = torch_entries.state_of(tensor)
    log = recorder.log
    gradient = torch_entries.gradient_of(tensor)
    if gradient is not None:
        return _bad(log, tensor, gradient) or reported(tensor)
    if log is not None:
        for entry in _entries_of(log, tensor):
            if entry.received:
                return _cleared(log, tensor, entry)
        if state.is_leaf and state.requires_grad:
            for known in log.backwards.values():
                if known.reached(tensor) and known.verb == "backward" and not known.restricted:
                    change = _clear_of(log, tensor)
                    if change is not None:
                        return reasons.Cleared(change.site, known.site, change.how)
        reason = diagnose(log, 0, tensor, state)
        if isinstance(reason, reasons.NeverBackward):  # it may have run before the watch
            return reported(tensor) or reason
        return reason
    if not state.differentiable:
        return reasons.NotDifferentiable(None, state.description.get("dtype") or "")
    if state.inference:
        return reasons.GradModeOff(None, "torch.inference_mode")
    if not state.requires_grad:
        return reasons.Frozen(None)
    if not state.is_leaf and not state.retains_grad:
        return reasons.NonLeaf(None, state.made_by)
    return _left_in_worker(tensor) or reported(tensor) or reasons.Unknown(None)


def _bad(log: Log | None, tensor: Any, gradient: Any) -> reasons.Reason | None:
    """The reason if the values of the current `gradient` of `tensor` are bad."""
    for entry in () if log is None else _entries_of(log, tensor):
        if log is not None and entry.received:
            if torch_entries.cleared_in_place(entry):
                return _cleared(log, tensor, entry)
            return _value_reason(log, entry, finite=True, nonzero=True)
    largest = torch_entries.largest_of(gradient)
    if largest is None or (math.isfinite(largest) and largest > 0):
        return None
    if largest == 0:
        return reasons.AllZero(None, came=False)
    return reasons.NotFinite(None, "nan" if math.isnan(largest) else "inf")


def _entries_of(log: Log, tensor: Any) -> Iterator[Entry]:
    """The entries of `tensor` in open watches."""
    for watch in log.listeners:
        entry = watch.entry_of(tensor) if isinstance(watch, TorchWatch) else None
        if entry is not None:
            yield entry


def _clear_of(log: Log, tensor: Any) -> Change | None:
    """The last `zero_grad` of `tensor`."""
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
        return torch_cuts.reason_of(made)
    if state.inference:
        return reasons.GradModeOff(None, "torch.inference_mode")
    return _frozen_by(log, tensor) or reasons.Frozen(None)


def _frozen_by(log: Log, tensor: Any, *, since: int = 0) -> reasons.Frozen | None:
    """The reason if `tensor` was frozen after event `since`."""
    for change in log.changes.values():
        if change.how == FROZEN and change.last > since and change.concerns(tensor):
            return reasons.Frozen(change.site, f": frozen by `{FROZEN}`")
    return None


def _frozen_earlier(
    log: Log, since: int, tensor: Any, backwards: list[Backward], watch: TorchWatch | None
) -> reasons.Reason | None:
    """The reason if `tensor` was frozen in the forward pass only."""
    frozen = _frozen_by(log, tensor, since=since)
    entry = None if watch is None else watch.entry_of(tensor)
    if frozen is not None:
        return dataclasses.replace(frozen, earlier=True)
    return reasons.Frozen(None, earlier=True) if entry is not None and entry.thawed else None


def _follower(log: Log, since: int, tensor: Any) -> Site | None:
    """Where `tensor` is written in place, if no optimizer updates it (an EMA model)."""
    if any(step.covers(tensor) for step in log.steps.values()):
        return None
    for change in log.changes.values():
        if change.how == WRITTEN and change.last > since and change.concerns(tensor):
            return change.site
    return None


def _never_ran(log: Log, since: int, tensor: Any) -> reasons.Reason:
    left = _left_in_worker(tensor)
    if left is not None:
        return left
    failed = log.failed
    if failed is not None and failed.when > since:
        started = Backward(failed.site, failed.chain, last=failed.when)
        if failed.chain and tensor is not None:
            cut = torch_cuts.likely(
                torch_cuts.cuts_of(log, since, tensor, [started]), [started], sure=True
            )
            if cut is not None:
                return torch_cuts.reason_of(cut)
        return reasons.NeverBackward(failed.site, failed.error)
    return reasons.NeverBackward()


def _without_outcome(known: Backward, tensor: Any) -> reasons.Reason:
    users = known.users.get(id(tensor), ())
    if any(name.startswith("CompiledFunction") for name in users):
        compiled = f"the compiled code in the graph of the loss{reasons.at(known.site)} is not seen"
        return reasons.Unknown(None, undecided=compiled)
    return reasons.NotProduced(known.site, users)


def _not_asked(reached: list[Backward], backwards: list[Backward]) -> reasons.Reason | None:
    """The reason if a backward pass that reached the tensor computed only other gradients."""
    if any(known.asked_for_all for known in backwards):
        # A gradient with a graph is a part of that loss: no others of it were wanted.
        reached = [known for known in reached if not known.first_order]
    return reasons.NotAsked(reached[0].site, reached[0].verb) if reached else None


def _at_worker(tensor: Any, backwards: list[Backward]) -> reasons.Reason | None:
    """The reason if a backward pass ended at worker results without their graph."""
    for known in backwards:
        for severed in known.severed:
            call = severed.call
            shipped = call.shipped.get(id(tensor))
            if shipped is not None and shipped[0]() is tensor:
                task = severed.note.task
                where = _step(task, f"`{task.name}` makes the graph in the worker")
                result = f"`{severed.note.path}` of `{task.name}`"
                return reasons.CutAtWorker(
                    *(call.site, call.backend, result, known.site, where),
                    case=gg103.case_of(call),
                )
    return None


def _left_in_worker(tensor: Any) -> reasons.Reason | None:
    """The reason if a worker computed the gradient for a copy and kept it."""
    kept: Any = sys.modules.get("pytest_gradguard.runtime.pitfalls.kept.worker_gradients")
    known = None if kept is None or tensor is None else kept.find_kept(tensor)
    if known is None:
        return None
    call, left = known
    where = _step(left.task, f"`{left.task.name}` runs backward on the copy")
    return reasons.LeftInWorker(call.site, call.backend, where)


def _step(task: Any, message: str) -> tuple[TraceStep, ...]:
    """A trace step at a task's function; empty if its location is unknown."""
    if task.path is None or task.line is None:
        return ()
    return (TraceStep(task.path, task.line, message),)


def _only_other_tensors(
    log: Log, since: int, backwards: list[Backward], watch: TorchWatch | None
) -> reasons.Reason | None:
    """The reason if backward passes and optimizers reached only other tensors."""
    if watch is None or torch_cuts.any_received(watch):
        return None
    watched = [found for entry in watch.entries if (found := entry.ref()) is not None]
    others = [one for one in log.all_listeners if one is not watch and isinstance(one, TorchWatch)]

    def of_another_watch(tensor: Any) -> bool:
        return any(one.watches(tensor) for one in others)

    for step in log.steps.values():
        if step.last <= since or any(step.covers(known) for known in watched):
            continue
        for known in backwards:
            if _stepped_and_reached(step, known, of_another_watch):
                return reasons.OtherParameters(step.site, known.site, len(step.parameters))
    if watch.whole_modules:
        shapes = Counter(tensor.shape for tensor in watched)
        for known in backwards:
            leaves = [found for leaf in known.leaves.values() if (found := leaf()) is not None]
            parameters = [
                leaf
                for leaf in leaves
                if isinstance(leaf, torch.nn.Parameter) and not of_another_watch(leaf)
            ]
            if len(watched) > 1 and not shapes - Counter(leaf.shape for leaf in parameters):
                return reasons.OtherParameters(known.site, known.site)
    return None


def _stepped_and_reached(
    step: Step, known: Backward, of_another_watch: Callable[[Any], bool]
) -> bool:
    return any(
        (tensor := reference()) is not None
        and known.reached(tensor)
        and not of_another_watch(tensor)
        for reference in step.parameters.values()
    )


def _not_in_graph(
    log: Log, since: int, cuts: list[Cut], backwards: list[Backward]
) -> reasons.Reason:
    undecided = _not_followed(log, since, cuts, backwards)
    if undecided:
        return reasons.Unknown(None, undecided=undecided)
    read = dict.fromkeys(
        f"[its value was|their values were] read{reasons.at(cut.site)}"
        + ("" if cut.exit is None else f" by `{cut.how}`")
        + ", outside the graph"
        for cut in cuts
        if cut.site is not None
    )
    if all(known.transform for known in backwards):
        latest = max(backwards, key=lambda known: known.last)
        return reasons.NotAsked(latest.site, "torch.func.grad")
    # A pass that only computed gradients for another loss is no loss itself.
    losses = [known for known in backwards if not known.first_order] or backwards
    latest = max(losses, key=lambda known: known.last)
    count = sum(known.count for known in losses)
    return reasons.NotInGraph(latest.site, count, notes=tuple(islice(read, 2)))


def _not_followed(log: Log, since: int, cuts: list[Cut], backwards: list[Backward]) -> str:
    """What could not be followed on the way to the loss; empty if everything was."""
    if not all(known.complete for known in backwards):
        return "the graph of the loss is too large to be searched"
    chains = [known.chain for known in backwards]
    last = max(known.last for known in backwards)
    for cut in cuts:
        copied = cut.exit is not None and cut.exit.copies and reads_back(cut.chain)
        if copied and reaches(cut.chain, chains) is None:
            return f"`{cut.how}`{reasons.at(cut.site)} may cut the graph, by what is read back"
    for cut in log.cuts.values():
        between = cut.partial and since < cut.last and cut.first < last
        if between and reaches(cut.chain, chains) is not False:
            return f"`{cut.how}`{reasons.at(cut.site)} ran too often to be followed each time"
    for change in log.changes.values():
        if change.how == SCRIPTED and change.last > since:
            return f"what the TorchScript code called{reasons.at(change.site)} does is not seen"
    return ""
