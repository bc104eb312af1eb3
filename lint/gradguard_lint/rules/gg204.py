"""A task selects its GPU by the environment: a reused worker keeps the first choice."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, TaskRun, of_kinds
from gradguard_lint.domain.payloads import GpuChoice
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.unknowns import is_process_specific
from gradguard_lint.domain.values import Class, Const, Unknown, Value
from gradguard_lint.rules.base import Report, chain, code

CODE = "GG204"


def check(program: Program) -> Iterator[Report]:
    # a process per task is the right way to select a GPU
    tasks = [task for task in program.process_tasks() if not _is_alone(task)]
    values: dict[int, set[Value]] = {}
    for task in tasks:
        for effect in of_kinds(task.effects, GpuChoice):
            if effect.payload.by == "environment":
                values.setdefault(id(effect.site.node), set()).add(effect.payload.device)
    for task in tasks:
        for effect in of_kinds(task.effects[task.initialised :], GpuChoice):
            by = effect.payload.by
            if by == "environment" and not _always_the_same(values[id(effect.site.node)]):
                yield Report(
                    effect.site,
                    f"{code(effect.what)} has no effect in a worker that has already used CUDA: "
                    "a reused worker keeps the device of its first task.",
                    chain(effect),
                    call=task.call,
                )
                break
            if by == "configuration" and _depends_on_task(effect.payload.device):
                yield Report(
                    effect.site,
                    "The visible devices depend on the task, but a worker that has started "
                    "TensorFlow cannot change them: its second task raises RuntimeError.",
                    chain(effect),
                    call=task.call,
                    case="tensorflow",
                )
                break


def _is_alone(task: TaskRun) -> bool:
    """Whether the process ends with the task, or belongs to one actor."""
    return (
        task.call.traits.single or bool(task.call.traits.actor) or any(task.task.function.of(Class))
    )


def _always_the_same(values: set[Value]) -> bool:
    """Whether all tasks of a worker set equal values."""
    if all(map(is_process_specific, values)):
        return True
    atoms = {atom for value in values for atom in value.atoms}
    return len(atoms) == 1 and all(isinstance(atom, Const) for atom in atoms)


def _depends_on_task(value: Value | None) -> bool:
    return value is not None and any(
        isinstance(atom, Unknown) and atom.key is None for atom in inner(value)
    )
