"""Tasks in several threads seed one global generator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Draw, Seed
from gradguard_lint.rules.base import Report, chain, code, listed

CODE = "GG308"


def check(program: Program) -> Iterator[Report]:
    for task in program.thread_tasks():
        if (
            not task.call.many
            or task.call.start != "thread"
            or program.in_turn(task.call, _uses_generator)
        ):
            continue
        for first, *more in _by_function_call(_shared_seeds(task)):
            frameworks = {effect.payload.framework for effect in (first, *more)}
            drawn = _drawn_frameworks(task.call)
            if drawn.isdisjoint(frameworks) and (drawn or frameworks == {"random"}):
                continue  # nothing draws from the seeded generators
            names = list(dict.fromkeys(code(effect.what) for effect in (first, *more)))
            what = f"what `{task.name}` draws"
            if not drawn:
                what = f"whatever `{task.name}` calls that draws"
            does = "seeds the generator" if len(names) == 1 else "seed the generators"
            yield Report(
                first.site,
                f"{listed(names)} {does} that all {task.call.workers} share: "
                f"{what} depends on when the other threads seed and draw.",
                (
                    *chain(first),
                    *(Step(effect.site, f"{code(effect.what)} seeds one, too") for effect in more),
                ),
                call=task.call,
                case=first.payload.framework if len(frameworks) == 1 else "",
            )


def _uses_generator(effect: Effect) -> bool:
    return isinstance(effect.payload, (Draw, Seed))


def _shared_seeds(task: TaskRun) -> Iterator[Effect[Seed]]:
    """The task's seeds of generators that other threads seed or draw from."""
    for effect in of_kinds(task.effects[task.initialised :], Seed):
        framework = effect.payload.framework
        if effect.modes.locked or not framework:
            continue
        if effect.payload.value.is_none:
            continue  # not meant to be reproducible
        if task.task.repeated or _meets_another(task, framework):
            yield effect


def _by_function_call(effects: Iterable[Effect[Seed]]) -> list[list[Effect[Seed]]]:
    """The effects grouped by function call, as several seeds there belong together."""
    groups: dict[tuple[object, ...], list[Effect[Seed]]] = {}
    for effect in effects:
        way = tuple(step.site for step in effect.chain)
        groups.setdefault((*way, effect.site.function, effect.site.module), []).append(effect)
    return list(groups.values())


def _drawn_frameworks(call: ParallelCall) -> set[str]:
    """Frameworks whose global generators the tasks draw from."""
    return {
        effect.payload.framework
        for task in call.tasks
        for effect in of_kinds(task.effects[task.initialised :], Draw)
    }


def _meets_another(task: TaskRun, framework: str) -> bool:
    """Whether another task of the call seeds or draws from the same generator."""
    return any(
        isinstance(effect.payload, (Draw, Seed)) and effect.payload.framework == framework
        for other in task.call.tasks
        if other is not task
        for effect in other.effects[other.initialised :]
    )
