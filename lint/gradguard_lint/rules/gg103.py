"""The parent's backward flows through a worker's result, where the gradient stops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import ParallelCall, Program, Step
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.fixes.changes import Change, Fix
from gradguard_lint.fixes.recipes import in_threads
from gradguard_lint.rules.base import Report
from gradguard_lint.rules.cut_backwards import cut_backwards

CODE = "GG103"

_TRANSFORMS = re.compile(rb"torch\.func|functorch|forward_ad|\b(?:vmap|jvp|vjp|jacrev|jacfwd)\b")


def check(program: Program) -> Iterator[Report]:
    for effect, found in cut_backwards(program):
        call = found[0]
        if call.kind == THREAD:  # dask's, which copy their arguments
            arrive, lost = "are computed from copies", "gets its graph over copies"
            ends = f"ends in copies behind the results of {call.workers}, which get copies of their"
            ends += " arguments: the originals get no gradient."
        else:
            arrive, lost = "arrive here as leaves", "returns a tensor whose graph is dropped"
            ends = f"stops at the results of {call.workers}: they come back as leaf tensors, and"
            ends += " what they were computed from gets no gradient."
        trace = [Step(call.site, f"the results of {call.workers} {arrive}")]
        for task in call.tasks:
            trace.extend(Step(site, f"`{task.name}` {lost}") for _, site in task.returns[:1])
        yield Report(
            effect.site,
            f"The backward pass {ends}",
            tuple(trace),
            call=call,
            fix=_in_threads(found),
        )


def _in_threads(found: Sequence[ParallelCall]) -> Fix | None:
    """The tasks in threads, which share the graph."""
    changes: list[Change] = []
    for call in found:
        own, maker = in_threads(call), call.traits.maker
        if not own or maker is None or _TRANSFORMS.search(maker.module.data):
            return None  # an active transform does not reach the threads
        changes += own
    return Fix("unsafe", "run the tasks in threads, which share the graph", tuple(changes))
