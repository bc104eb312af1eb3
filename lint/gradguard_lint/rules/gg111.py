"""A module updates its running statistics in a worker, and they aren't returned."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import ModelChange, ModelUse, OptimizerStep, Write
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import (
    COPIED,
    FIGURE,
    GRADIENT,
    OUTPUT,
    Atom,
    Const,
    Instance,
    Items,
    Table,
    TaskCall,
    Tensor,
    Thing,
    is_number,
)
from gradguard_lint.rules.base import (
    Report,
    after_call,
    captures,
    origins,
    place,
    sending_step,
    sites_to,
)

CODE = "GG111"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        call = task.call
        if not call.channel.ships or not call.channel.answers or call.channel.forking_pickler:
            continue  # inherited memory; no results; shared memory
        sent = _modules(program, task)
        update = next((effect for effect in task.effects if _updates(program, effect, sent)), None)
        if update is None or _brings_back(program, task, sent):
            continue
        use = _later_use(program, task, sent)
        if use is not None:
            sent_by = _sender(program, task, update)
            yield Report(
                sent_by.site,
                f"`{task.name}` updates the running statistics of a copy in {task.call.workers} "
                f"and returns none of them: the module that {place(use.site, sent_by.site)} uses "
                "keeps its old statistics.",
                (
                    sending_step(task, sent_by),
                    Step(update.site, "a forward pass updates the statistics of the copy here"),
                    Step(use.site, "the module is used again here"),
                ),
                call=task.call,
            )


def _sender(program: Program, task: TaskRun, update: Effect) -> TaskCall:
    """The task, or its worker's initializer, that the updated module is sent with."""
    for sent, crossing in task.split_by_initializer(task.contents):
        if _updates(program, update, _modules_in(crossing)):
            return sent
    return task.task


def _modules_in(crossing: list[tuple[str, Atom, bool]]) -> set[int]:
    """The identities of modules in `crossing`."""
    return {
        atom.ident
        for _, atom, _ in crossing
        if isinstance(atom, Instance) or (isinstance(atom, Thing) and atom.kind == "model")
    }


def _modules(program: Program, task: TaskRun) -> set[int]:
    """The identities of modules sent with the task."""
    found = _modules_in(task.contents)
    for _, value, _ in captures(program, task):
        found |= idents(value)
    return found


def _updates(program: Program, effect: Effect, sent: set[int]) -> bool:
    """Whether the effect changes buffers of a module in `sent`."""
    if _trains(effect):
        return not idents(effect.target).isdisjoint(sent)
    return isinstance(effect.payload, Write) and any(
        program.buffers.get(tensor.ident) in sent for tensor in effect.target.tensors()
    )


def _trains(effect: Effect) -> bool:
    return isinstance(effect.payload, ModelUse) and effect.payload.does == "train"


def _brings_back(program: Program, task: TaskRun, sent: set[int]) -> bool:
    """Whether the result may contain the buffers, or the worker trains its own copy."""
    if task.result is None:
        return True
    parameters = False
    for atom in inner(task.result):
        if isinstance(atom, Tensor):
            of_it = origins(atom) | program.copies.get(atom.ident, set())
            if not of_it.isdisjoint(program.buffers):
                return True
            copied = atom.grad == "none" or COPIED in of_it
            copied = copied and of_it.isdisjoint((FIGURE, OUTPUT))
            parameters = parameters or not sent.isdisjoint(of_it if copied else (atom.ident,))
            if atom.framework == "numpy" and of_it.isdisjoint((FIGURE, GRADIENT, OUTPUT, *sent)):
                return True
        elif is_number(atom):
            continue
        elif not isinstance(atom, (Const, Items, Table)):
            return True
    return not parameters and any(of_kinds(task.effects, OptimizerStep))


def _later_use(program: Program, task: TaskRun, sent: set[int]) -> Effect | None:
    """The first use of a sent module by the parent, unless it writes the buffers."""
    found = None
    for effect in after_call(program, task.call, ModelChange, ModelUse, OptimizerStep, Write):
        reached = {program.buffers.get(ident, ident) for ident in idents(effect.target)}
        if reached.isdisjoint(sent):
            continue
        if isinstance(effect.payload, ModelChange):
            if _leaves_buffers(program, effect, sent):
                continue
            return None
        if _trains(effect):
            return None  # the parent collects statistics itself
        if not isinstance(effect.payload, Write) or _in_forward(effect):
            found = found or effect
        elif not idents(effect.target).isdisjoint(program.buffers):
            return None
    return found


def _leaves_buffers(program: Program, load: Effect, sent: set[int]) -> bool:
    """Whether the module loads only parameters that a worker returned."""
    change = load.payload
    if not isinstance(change, ModelChange) or change.extent != "partial":
        return False
    taken = [atom for atom in inner(change.value) if not isinstance(atom, (Items, Table))]
    return all(
        isinstance(atom, Tensor)
        and (made_from := origins(atom) - {0, COPIED})
        and {program.sent_back.get(ident, ident) for ident in made_from} <= sent
        for atom in taken
    )


def _in_forward(effect: Effect) -> bool:
    """Whether the effect happens in a forward pass."""
    return any((site.function or "").endswith(".forward") for site in sites_to(effect))
