"""Several threads write to one model, optimizer or tensor at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain as chained

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import Instance, Tensor, Thing
from gradguard_lint.rules.base import Report, chain, code

CODE = "GG302"

_WRITES = ("step", "zero-grad", "in-place", "model-change")


def check(program: Program) -> Iterator[Report]:
    for task in program.thread_tasks():
        call = task.call
        if call.start != "thread":
            continue
        alike = call.many and not program.in_turn(call, *_WRITES, "backward")
        written = [*_writes(task.effects)]
        meanwhile = _meanwhile(program, call) if written and not task.waits else []
        for effect in written:
            if alike and _shared(effect, task):
                said = f"all {call.workers} share: the threads"
            elif other := _beside(effect, call, meanwhile):
                name = f"{code(other.worker.name)} in another thread" if other.worker else ""
                said = f"{name or 'the program itself'} changes meanwhile: they"
            else:
                continue
            yield Report(
                effect.site,
                f"{code(effect.what)} changes an object that {said} overwrite each other's work.",
                chain(effect),
                call=call,
            )


def _writes(effects: Iterable[Effect]) -> Iterator[Effect]:
    return (it for it in effects if _is_write(it) and not it.modes.locked)


def _meanwhile(program: Program, call: ParallelCall) -> list[Effect]:
    """What is changed while `call` may run, by another call of that turn of the loops around, or by
    the program itself; by none that waits for others to go on."""
    calls = [
        it
        for it in program.calls
        if (it in call.overlaps or call in it.overlaps) and it.turn == call.turn
    ]
    others = [_writes(task.effects) for it in calls for task in it.tasks if not task.waits]
    own = [it for it in program.effects if it.worker is call.worker and call.ident in it.beside]
    return [*chained.from_iterable(others), *_writes(own)]


def _beside(effect: Effect, call: ParallelCall, meanwhile: list[Effect]) -> Effect | None:
    """What of `meanwhile` changes the same object as `effect`, which a task of `call` has."""
    changed = _own_idents(effect)
    return next(
        (
            other
            for other in meanwhile
            if not changed.isdisjoint(_own_idents(other))
            and consistent(effect.when, other.when, call.when)
        ),
        None,
    )


def _own_idents(effect: Effect) -> set[int]:
    """The identities of what it changes; of a tensor, its own alone: what it was made from may have
    other parts."""
    tensors = [*effect.target.of(Tensor)]
    return {atom.ident for atom in tensors if atom.ident > 0} if tensors else idents(effect.target)


def _is_write(effect: Effect) -> bool:
    """Whether it writes what it is about: of a model, a state that is put in place of its own."""
    return effect.kind in _WRITES and (
        effect.kind != "model-change" or effect.framework in ("whole", "partial")
    )


def _shared(effect: Effect, task: TaskRun) -> bool:
    value = effect.target
    for atom in value.atoms:
        if isinstance(atom, Tensor):
            if atom.born != task.ident and (atom.ident > 0 or atom.whole > 0):
                return True
        elif isinstance(atom, Instance):
            if atom.born != task.ident:
                return True
        elif isinstance(atom, Thing):
            if atom.born != task.ident:
                return True
            parameters = atom.part("parameters")
            if parameters is not None and any(
                isinstance(part, Tensor) and part.born != task.ident for part in inner(parameters)
            ):
                return True
    return False
