"""The parent continues with a model returned by a worker, but the old model's optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step
from gradguard_lint.domain.payloads import (
    Backward,
    GradWrite,
    ModelChange,
    OptimizerChange,
    OptimizerStep,
    Write,
)
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import GRADIENT, Atom, Instance, Tensor, Thing, Unknown
from gradguard_lint.rules.base import Report, after_call, origins, place

CODE = "GG112"


def check(program: Program) -> Iterator[Report]:
    if not program.returned:
        return
    for step in program.effects_of(OptimizerStep):
        held = _held_models(program, step) if step.worker is None else set()
        for call in program.calls if held else ():
            if call.ident not in step.calls:
                continue
            sent = _sent_models(call)
            back = {ident for ident, (by, _) in program.returned.items() if by == call.ident}
            arrival = f"the model goes to {call.workers}, and a copy comes back"
            if not held.isdisjoint(sent):
                which = f"that was sent to {call.workers}"
            elif not held.isdisjoint(_reached(program.copies, sent)):
                which = f"a copy of which was sent to {call.workers}"
            elif not held.isdisjoint(_reached(program.replaced, back)):
                which = f"that is replaced by one that comes back from {call.workers}"
                arrival = "the other model comes back from here"
            else:
                continue
            backward = _backward_through_returned(program, step, call, held, back)
            if backward is None:
                continue
            yield Report(
                step.site,
                f"{step.what} steps the model {which}, but the "
                f"backward pass at {place(backward.site, step.site)} gives gradients to the model "
                "that came back. This optimizer does not hold that model and never updates it.",
                (
                    Step(call.site, arrival),
                    Step(backward.site, "what came back gets its gradients here"),
                ),
                call=call,
            )
            break


def _held_models(program: Program, step: Effect) -> set[int]:
    """The models of the optimizer's parameters; empty if any is unknown."""
    found: set[int] = set()
    for atom in step.target.atoms:
        parameters = atom.part("parameters") if isinstance(atom, Thing) else None
        if parameters is None or any(isinstance(part, Unknown) for part in inner(parameters)):
            return set()
        if any(atom in change.target.atoms for change in program.effects_of(OptimizerChange)):
            return set()
        found |= idents(parameters)
    return found


def _sent_models(call: ParallelCall) -> set[int]:
    """The models sent to the workers of `call`."""
    return {
        atom.ident
        for task in call.tasks
        for _, atom, _ in task.contents
        if isinstance(atom, (Instance, Thing))
    }


def _reached(links: Mapping[int, set[int]], idents: set[int]) -> set[int]:
    """All that `links` lead to from `idents`, in one or more steps."""
    found: set[int] = set()
    pending = idents
    while pending:
        pending = {other for ident in pending for other in links.get(ident, ())} - found
        found |= pending
    return found


def _backward_through_returned(
    program: Program, step: Effect, call: ParallelCall, held: set[int], back: set[int]
) -> Effect | None:
    """The parent's backward pass through the returned model, if nothing else trains it."""
    found: Effect | None = None
    for effect in after_call(program, call, Backward, GradWrite, ModelChange, OptimizerStep, Write):
        reached = idents(effect.target)
        if isinstance(effect.payload, GradWrite):
            if not reached or reached & held:
                return None  # the gradients are copied
            continue
        if isinstance(effect.payload, Backward) and effect.root == step.root:
            if not reached or reached & held:
                return None
            found = effect if reached & back else found
        elif reached & (held if _gets_unrelated_values(effect, held | back) else back):
            return None  # stepped by hand, by another optimizer, or copied back
    return found


def _gets_unrelated_values(effect: Effect, models: set[int]) -> bool:
    """Whether a model gets values that don't come from any of `models`."""
    change = effect.payload
    if isinstance(change, ModelChange):
        return True
    if not isinstance(change, Write) or not change.whole:
        return False
    given = [*inner(change.value)]
    return (
        bool(given)
        and not any(isinstance(atom, Unknown) or _may_have_gradients(atom) for atom in given)
        and idents(change.value).isdisjoint(models)
    )


def _may_have_gradients(atom: Atom) -> bool:
    """Whether `atom` may be computed from gradients."""
    return isinstance(atom, Tensor) and (atom.grad == "unknown" or GRADIENT in origins(atom))
