"""Which processes of a program use a GPU, and which have their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import NONE, consistent
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun, Waited, of_kinds
from gradguard_lint.domain.payloads import GpuChoice, GpuUse, LibraryUse
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.domain.unknowns import is_process_specific
from gradguard_lint.domain.values import Atom, Const, Thing, Value
from gradguard_lint.engine.truth import names_gpu
from gradguard_lint.rules.exclusive import excludes

_USING = ("context", "work", "hinted", "implied")
"""The kinds of effects that use a GPU."""


def first_uses(task: TaskRun) -> list[Effect[GpuUse]]:
    """The first GPU use on each path through the task, of the most direct kind."""
    for kind in ("context", "hinted", "implied"):
        found: list[Effect[GpuUse]] = []
        for effect in of_kinds(task.effects, GpuUse):
            if effect.gpu_use != kind or effect.payload.bare:
                continue
            if all(excludes(it, effect) for it in found):
                found.append(effect)
        if found:
            return found
    return []


def calls_with_lone_process(program: Program, tasks: list[TaskRun]) -> list[ParallelCall]:
    """The calls whose single process uses the GPU alone, or alone with the parent."""
    calls = list(dict.fromkeys(task.call for task in tasks))
    if tasks and is_one_process(tasks):
        return calls
    return [] if uses_gpu_in_parent(program) else [it for it in calls if _is_alone(it, calls)]


def _is_alone(call: ParallelCall, calls: list[ParallelCall]) -> bool:
    """Whether the process of `call` never runs at the same time as workers of other `calls`."""
    if (
        not call.traits.single
        or not call.schedule.awaited
        or any(it in calls for it in call.overlaps)
    ):
        return False
    return all(
        other.worker is None
        and (
            other.schedule.awaited
            if other.traits.single
            else other not in call.before or _ended(other, call)
        )
        for other in calls
    )


def _ended(other: ParallelCall, call: ParallelCall) -> bool:
    """Whether the workers of `other` have certainly ended when `call` starts."""
    waits = (call.before.get(Waited(ident)) for ident in other.schedule.until)
    return any(when is not None and when <= call.when for when in waits)


def is_one_process(tasks: list[TaskRun]) -> bool:
    """Whether all `tasks` run in one process of their own."""
    call = tasks[0].call
    return call.traits.single and not call.many and all(task.call is call for task in tasks)


def uses_gpu_in_parent(program: Program) -> bool:
    """Whether the calling process or one of its threads uses a GPU."""
    return any(
        it.gpu_use in _USING and (it.worker is None or it.worker.call.kind == THREAD)
        for it in program.effects
    )


def has_gpu_of_its_own(task: TaskRun, chosen: dict[ast.AST, set[Atom]]) -> bool:
    """Whether the task joins a process group, or selects or receives a GPU for its process."""
    if task.call.traits.single and any(
        private and _names_gpu(atom) for _, atom, private in task.given
    ):
        return True
    return any(
        _joins_group(effect) or _is_own_choice(_device_of(effect)) for effect in task.effects
    ) or any(_may_differ(chosen[node]) for node, _ in _chosen_by(task))


def _joins_group(effect: Effect) -> bool:
    return isinstance(effect.payload, LibraryUse) and effect.payload.use == "process group"


def _is_own_choice(device: Value | None) -> bool:
    return device is not None and is_process_specific(device) and not device.constants()


def chosen_gpus(program: Program) -> dict[ast.AST, set[Atom]]:
    """The GPUs that each site selects for a task's process."""
    chosen: dict[ast.AST, set[Atom]] = {}
    for task in program.process_tasks():
        for node, device in _chosen_by(task):
            chosen.setdefault(node, set()).update(device.atoms)
    return chosen


def _device_of(effect: Effect) -> Value | None:
    """The GPU that the effect names for its process, if any."""
    use = effect.payload
    if isinstance(use, GpuUse) and use.gpu_use in ("context", "hinted"):
        return use.device
    return use.device if isinstance(use, GpuChoice) and use.by != "configuration" else None


def _chosen_by(task: TaskRun) -> Iterator[tuple[ast.AST, Value]]:
    """The sites that select a GPU for the whole process of `task`, with the GPU."""
    for effect in task.effects if task.call.traits.single else task.effects[: task.initialised]:
        device = _device_of(effect)
        if device is not None:
            yield effect.site.node, device
    for event in of_kinds(task.call.before if task.call.traits.single else (), GpuChoice):
        if event.payload.by == "environment" and event.worker is None:
            yield event.site.node, event.payload.device


def _may_differ(devices: set[Atom]) -> bool:
    """Whether two processes may use different GPUs."""
    named = {atom.value for atom in devices if isinstance(atom, Const)}
    return len(named) < len(devices) or len(named - {"cpu"}) > 1


def uses_another_gpu(program: Program, task: TaskRun) -> bool:
    """Whether the process of `task` uses a numbered GPU that no other process uses."""
    if not task.call.traits.single or task.call.many:
        return False
    own = _gpu_numbers(_certain_effects(task))
    here = [it for it in program.effects if it.worker is None]
    others = [
        _gpu_numbers(effects)
        for effects, when in (
            (here, NONE),
            *(
                (_certain_effects(it), it.call.when)
                for it in program.process_tasks()
                if it is not task
            ),
        )
        if consistent(when, task.call.when)
    ]
    return bool(own) and any(others) and all(map(own.isdisjoint, others))


def _certain_effects(task: TaskRun) -> list[Effect]:
    """The effects of `task` that accompany its first GPU use."""
    first = first_uses(task)
    return [it for it in task.effects if any(it.when <= one.when for one in first)]


def _gpu_numbers(effects: list[Effect]) -> set[str]:
    """The known numbers of GPUs that these effects use; 0 by default."""
    in_environment: set[str] = set()
    in_code: set[str] = set()
    for effect in effects:
        device = _device_of(effect)
        if device is not None:
            by_environment = getattr(effect.payload, "by", "") == "environment"
            named = in_environment if by_environment else in_code
            named.update(map(str, device.constants()))
        elif effect.gpu_use in _USING:
            in_code.add("the default")
    visible = {number for names in in_environment for number in names.split(",")}
    numbers = {name.rpartition(":")[2] for name in in_code if name[-1:].isdigit()}
    return visible or numbers or ({"0"} if in_code else set())


def _names_gpu(atom: Atom) -> bool:
    """Whether `atom` is a GPU, or its name, that may differ between tasks."""
    if isinstance(atom, Thing):
        return atom.kind == "device" and atom.gpu and not atom.name[-1:].isdigit()
    return isinstance(atom, Const) and isinstance(atom.value, str) and names_gpu(atom.value)
