"""A worker trains a copy of a module and returns nothing of it, but the parent uses the module."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import (
    Backward,
    Escape,
    GradWrite,
    ModelChange,
    ModelUse,
    OptimizerStep,
    Write,
)
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import COPIED, FIGURE, OUTPUT, Atom, Tensor, Unknown
from gradguard_lint.rules import gg106
from gradguard_lint.rules.base import Report, after_call, origins, place, steps_to
from gradguard_lint.rules.left_behind import (
    has_no_part,
    stepped,
    trained_objects,
    with_owners,
)

CODE = "GG114"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        call = task.call
        if call.channel.forking_pickler and call.channel.ships:
            continue  # its parameters are in shared memory
        if call.traits.actor or not task.known:
            continue
        sent = [(path, own - program.shared) for path, own in trained_objects(task)]
        shipped = {ident for _, own in sent for ident in own}
        steps = of_kinds(task.effects, OptimizerStep)
        step = next((it for it in steps if stepped(it) & shipped), None)
        if step is None:
            continue
        trained = with_owners(sent, stepped(step) & shipped)
        brought = not _returns_none(task, sent, trained) or any(
            _may_leak(it, trained, program.shared) for it in task.effects
        )
        if brought or any(gg106.left_behind(program, task)):
            continue
        use = _later_use(program, task, trained)
        if use is None:
            continue
        site = task.task.site
        path = next(path for path, own in sent if own & trained)
        yield Report(
            site,
            f"`{task.name}` trains a copy of `{path}` in {call.workers} and returns nothing of it: "
            f"the parent {_does(use)} the module at {place(use.site, site)} as it was before.",
            (
                *steps_to(step, "an optimizer steps the parameters of the copy here"),
                Step(use.site, "the parent goes on with the untrained module here"),
            ),
            call=call,
        )


def _returns_none(task: TaskRun, sent: list[tuple[str, set[int]]], trained: set[int]) -> bool:
    """Whether the result certainly contains nothing of the trained module."""
    if task.result is None:
        return not task.call.channel.answers
    paths = [path for path, own in sent if own & trained]
    apart = {
        atom
        for path, atom, _ in task.given
        if isinstance(atom, Unknown)
        and not any(f"{it}.".startswith((f"{path}.", f"{path}[")) for it in paths)
    }
    return all(
        atom in apart or (has_no_part(atom) and not _is_copy(atom, trained))
        for atom in inner(task.result)
    )


def _is_copy(atom: Atom, trained: set[int]) -> bool:
    """Whether a tensor of the result may have the values of trained parameters."""
    if not isinstance(atom, Tensor):
        return False
    made_from = origins(atom)
    return COPIED in made_from or (
        not made_from.isdisjoint(trained) and made_from.isdisjoint((FIGURE, OUTPUT))
    )


def _may_leak(effect: Effect, trained: set[int], shared: set[int]) -> bool:
    """Whether the worker saves what it trained, or passes it to something unknown or shared."""
    payload = effect.payload
    if isinstance(payload, ModelUse):
        return payload.does == "save" and not trained.isdisjoint(idents(effect.target))
    if isinstance(payload, Escape):
        given = (effect.target, *payload.reachable)
        return any(not trained.isdisjoint(idents(it)) for it in given)
    if isinstance(payload, (ModelChange, Write)):
        changed = idents(effect.target) - trained
        return bool(changed & shared or (changed and trained & idents(payload.value)))
    return False


def _later_use(program: Program, task: TaskRun, trained: set[int]) -> Effect | None:
    """The parent's first use of the module after the call, before it trains or changes it itself.

    A run with gradients enabled may be the forward pass of its own training.
    """
    found = None
    kinds = (Backward, GradWrite, ModelChange, ModelUse, OptimizerStep, Write)
    for effect in after_call(program, task.call, *kinds):
        use = effect.payload
        if trained.isdisjoint(idents(effect.target)) or not consistent(task.call.when, effect.when):
            continue
        if not isinstance(use, (ModelUse, OptimizerStep)):
            return None
        if isinstance(use, ModelUse) and use.does == "state":
            continue  # possibly to send it again
        if not isinstance(use, ModelUse) or use.does == "save" or not effect.modes.grad:
            return effect
        found = found or effect
    return found


def _does(use: Effect) -> str:
    """What the parent does with the module, for the message."""
    if isinstance(use.payload, ModelUse):
        return "saves" if use.payload.does == "save" else "uses"
    return "steps"
