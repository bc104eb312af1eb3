"""The parent's backward passes that stop at what workers returned."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, ParallelCall, Program
from gradguard_lint.domain.payloads import Backward, Detached, GradRead, OptimizerStep
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import UNKNOWN, Tensor, Thing
from gradguard_lint.rules.base import severed_by


def cut_backwards(program: Program) -> Iterator[tuple[Effect, list[ParallelCall]]]:
    """Each of these, with the calls whose results it stops at."""
    # Where torch itself pickles, it refuses such a result: no backward is reached. Under the
    # caller's `no_grad` one process gives no graph either.
    calls = {
        call.ident: call
        for call in program.calls
        if not call.channel.forking_pickler and call.modes.grad
    }
    # Where the gradient of the results themselves is asked for, it goes on from there by hand.
    # What is detached in place wants none, by whatever name it is used.
    of_results = [
        effect.target for effect in program.effects_of(Detached, GradRead) if effect.worker is None
    ]
    of_results += [  # an optimizer steps the results themselves
        atom.part("parameters") or UNKNOWN
        for effect in program.effects_of(OptimizerStep)
        for atom in effect.target.of(Thing)
    ]
    wanted = set().union(*map(severed_by, of_results))
    for effect in program.effects_of(Backward):
        if effect.worker is not None:
            continue
        severed = {
            ident
            for atom in inner(effect.target)
            if isinstance(atom, Tensor)
            for ident in (atom.severed or atom.maybe)
        }
        severed -= wanted | severed_by(effect.payload.inputs)
        found = [calls[ident] for ident in sorted(severed) if ident in calls]
        found = [call for call in found if consistent(call.when, effect.when)]
        if found:
            yield effect, found
