"""Finds the cut of the graph that kept a tensor from its gradient, and the reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_gradguard.gradients import reasons
from pytest_gradguard.gradients.flow import reaches
from pytest_gradguard.gradients.torch_exits import DEEPCOPY, OTHER_OBJECT, STATE_DICT
from pytest_gradguard.gradients.torch_log import Log
from pytest_gradguard.gradients.torch_records import Backward, Cut
from pytest_gradguard.gradients.torch_watch import TorchWatch


def reason_of(cut: Cut) -> reasons.Reason:
    """The reason that names this cut."""
    if cut.exit is None:
        return reasons.GradModeOff(cut.entered or cut.site, cut.mode, cut.site)
    return reasons.Cut(cut.entered or cut.site, cut.how, cut.exit.fix)


def cuts_of(log: Log, since: int, tensor: Any, backwards: list[Backward]) -> list[Cut]:
    """Cuts of values computed from `tensor`, before the last backward pass."""
    last = max(known.last for known in backwards)
    return [
        cut
        for cut in log.cuts.values()
        if since < cut.last and cut.first < last and cut.severed(tensor)
    ]


def reason_by_cut(
    cuts: list[Cut],
    tensor: Any,
    backwards: list[Backward],
    watch: TorchWatch | None,
    *,
    sure: bool,
) -> reasons.Reason | None:
    """The cut between `tensor` and the loss; `sure`: only if its value certainly reaches it."""
    cut = confirmed(cuts, tensor)
    if cut is not None and cut.exit in (DEEPCOPY, STATE_DICT):  # its copy got the gradient
        if any_received(watch):
            return reasons.Cut(cut.site, cut.how, OTHER_OBJECT)
        last = max(backwards, key=lambda known: known.last)
        return reasons.OtherParameters(last.site, last.site, copied=cut.site)
    cut = cut or likely(cuts, backwards, sure=sure)
    return None if cut is None else reason_of(cut)


def confirmed(cuts: list[Cut], tensor: Any) -> Cut | None:
    """The cut whose output a backward pass reached."""
    return _foremost(cut for cut in cuts if id(tensor) in cut.confirmed)


def likely(cuts: list[Cut], backwards: list[Backward], *, sure: bool = False) -> Cut | None:
    """The cut whose value reaches the loss in the source; if not `sure`, or may reach it."""
    judged = [
        (reaches(cut.chain, [known.chain for known in backwards if known.chain != cut.chain]), cut)
        for cut in cuts
        if cut.site is not None
    ]
    certain = _foremost(cut for flows, cut in judged if flows)
    if certain is not None or sure:
        return certain
    return _foremost(
        cut
        for flows, cut in judged
        if flows is None and not (cut.exit is not None and cut.exit.copies)
    )


def _foremost(cuts: Iterable[Cut]) -> Cut | None:
    """The cut to report: the last one whose graph still held the others' values."""
    return max(
        cuts, key=lambda cut: (2 if cut.exit is None else cut.exit.rank, cut.first), default=None
    )


def any_received(watch: TorchWatch | None) -> bool:
    """Whether another tensor of the watch got its gradient; also if nothing is watched."""
    return watch is None or any(entry.received for entry in watch.entries)
