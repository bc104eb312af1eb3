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
    """Each backward pass that is cut, with the calls at whose results it stops."""
    # torch's pickler refuses results with a graph; under `no_grad` there is none.
    calls = {
        call.ident: call
        for call in program.calls
        if not call.channel.forking_pickler and call.modes.grad
    }
    # A program that reads the results' gradients continues by hand; results detached in place need
    # none.
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
        cut = (calls[ident] for ident in sorted(severed & calls.keys()))
        found = [call for call in cut if consistent(call.when, effect.when)]
        if found:
            yield effect, found
