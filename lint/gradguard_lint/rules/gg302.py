"""Several threads write to one model, optimizer or tensor at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain as chained

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun
from gradguard_lint.domain.payloads import Backward, GradClear, ModelChange, OptimizerStep, Write
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import Instance, Tensor, Thing
from gradguard_lint.rules.base import Report, chain, code

CODE = "GG302"

_WRITES = (GradClear, ModelChange, OptimizerStep, Write)


def check(program: Program) -> Iterator[Report]:
    for task in program.thread_tasks():
        call = task.call
        if call.start != "thread":
            continue
        alike = call.many and not program.in_turn(call, _changes)
        written = [*_writes(task.effects)]
        meanwhile = _concurrent_writes(program, call) if written and not task.waits else []
        for effect in written:
            if alike and _is_shared(effect, task):
                who = f"all {call.workers} share: the threads"
            elif other := _concurrent_write(effect, call, meanwhile):
                name = f"{code(other.worker.name)} in another thread" if other.worker else ""
                who = f"{name or 'the program itself'} changes meanwhile: they"
            else:
                continue
            yield Report(
                effect.site,
                f"{code(effect.what)} changes an object that {who} overwrite each other's work.",
                chain(effect),
                call=call,
            )


def _writes(effects: Iterable[Effect]) -> Iterator[Effect]:
    return (it for it in effects if _is_write(it) and not it.modes.locked)


def _concurrent_writes(program: Program, call: ParallelCall) -> list[Effect]:
    """Writes while `call` may run: of calls in the same iteration, and of the program.

    Tasks that wait for others don't count.
    """
    calls = [
        it
        for it in program.calls
        if (it in call.overlaps or call in it.overlaps) and it.schedule.turn == call.schedule.turn
    ]
    others = [_writes(task.effects) for it in calls for task in it.tasks if not task.waits]
    own = [
        it
        for it in program.effects
        if it.worker is call.worker and call.ident in it.concurrent_calls
    ]
    return [*chained.from_iterable(others), *_writes(own)]


def _concurrent_write(effect: Effect, call: ParallelCall, meanwhile: list[Effect]) -> Effect | None:
    """The concurrent write to the object that `effect` writes to."""
    changed = _changed_idents(effect)
    return next(
        (
            other
            for other in meanwhile
            if not changed.isdisjoint(_changed_idents(other))
            and consistent(effect.when, other.when, call.when)
        ),
        None,
    )


def _changed_idents(effect: Effect) -> set[int]:
    """The identities of what is changed; of a tensor only its own, not its origins."""
    tensors = [*effect.target.of(Tensor)]
    return {atom.ident for atom in tensors if atom.ident > 0} if tensors else idents(effect.target)


def _is_write(effect: Effect) -> bool:
    """Whether the effect writes to its target; a model is written by another state."""
    written = effect.payload
    if isinstance(written, ModelChange):
        return written.extent != ""
    return _changes(effect) and not isinstance(written, Backward)


def _changes(effect: Effect) -> bool:
    """Whether other threads may see the target change."""
    written = effect.payload
    exact = isinstance(written, Write) and written.exact
    return isinstance(written, (Backward, *_WRITES)) and not exact


def _is_shared(effect: Effect, task: TaskRun) -> bool:
    """Whether the target, or a parameter in it, wasn't created by the task itself."""
    for atom in effect.target.atoms:
        if not isinstance(atom, (Instance, Tensor, Thing)):
            continue
        known = not isinstance(atom, Tensor) or atom.ident > 0 or atom.whole > 0
        if known and atom.born != task.ident:
            return True
        parameters = atom.part("parameters") if isinstance(atom, Thing) else None
        if parameters is not None and any(
            isinstance(part, Tensor) and part.born != task.ident for part in inner(parameters)
        ):
            return True
    return False
