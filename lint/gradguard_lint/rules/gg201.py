"""A process worker initializes a GPU: every worker has its own context."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Backward, GpuSetting, GpuUse, OptimizerStep
from gradguard_lint.fixes.changes import Fix, Replace, Wrap
from gradguard_lint.fixes.later import asked
from gradguard_lint.fixes.recipes import made_by
from gradguard_lint.fixes.task_functions import function_of, handed_out_alone
from gradguard_lint.fixes.written import evaluable, keyword, source_of
from gradguard_lint.rules.base import MOST, Report, chain, code, dispatch_step, started_cuda
from gradguard_lint.rules.gpu_owners import (
    calls_with_lone_process,
    chosen_gpus,
    first_uses,
    has_gpu_of_its_own,
    is_one_process,
    uses_another_gpu,
    uses_gpu_in_parent,
)

CODE = "GG201"

Uses = tuple[TaskRun, list[Effect[GpuUse]]]
"""A task, and its first use of a GPU on each path."""


def check(program: Program) -> Iterator[Report]:
    chosen = chosen_gpus(program)
    used = [
        (task, first_uses(task))
        for task in program.process_tasks()
        # One process per GPU is the intended use.
        if not task.call.traits.meant and not has_gpu_of_its_own(task, chosen)
    ]
    used = [(task, uses) for task, uses in used if uses]
    lone = calls_with_lone_process(program, [task for task, _ in used])
    return _reports(program, [it for it in used if not uses_another_gpu(program, it[0])], lone)


def _reports(program: Program, used: list[Uses], lone: list[ParallelCall]) -> Iterator[Report]:
    """One report for each site of a first use."""
    by_place: dict[ast.AST, list[Uses]] = {}
    for task, uses in used:
        by_place.setdefault(uses[0].site.node, []).append((task, uses))
    meant = any(it.payload.setting == "meant" for it in program.effects_of(GpuSetting))
    for ways in by_place.values():
        task, (effect, *_) = min(ways, key=_preference)
        others = {
            other.task.site: other
            for other, _ in ways
            if other.task.site.node is not task.task.site.node
        }
        fails = _fails(task, effect)
        alone = all(way.call in lone for way, _ in ways) and not fails
        unasked = effect.gpu_use == "implied" and not meant
        grown = all(uses[0].payload.grown for _, uses in ways)
        what = effect.what.strip("`")
        does = "fails here" if fails else "initialises the GPU here"
        branches = {it.site: it for _, (_, *rest) in ways for it in rest}
        instead = [(way, rest) for way, (_, *rest) in ways if rest]
        yield Report(
            effect.site,
            _message(program, [way for way, _ in ways], task, effect, lone if alone else []),
            (
                *chain(effect),
                Step(effect.site, f"`{what}` {does}"),
                *_first_data(task, effect),
                *_on_other_branches([*branches.values()]),
                *(dispatch_step(other) for other in others.values()),
            ),
            severity="info" if alone or unasked or grown else None,
            call=task.call,
            when=effect.when,
            what=what,
            case=_case(program, task, effect),
            others=tuple(others),
            fix=_in_the_parent(program, task, effect) if not others else None,
            otherwise=(*_reports(program, instead, lone),),
        )


def _preference(way: Uses) -> tuple[bool, int]:
    """The order in which tasks represent a site: successful first, then the shortest chain."""
    task, (effect, *_) = way
    return _fails(task, effect), len(effect.chain)


def _message(
    program: Program,
    tasks: list[TaskRun],
    task: TaskRun,
    effect: Effect[GpuUse],
    lone: list[ParallelCall],
) -> str:
    """The message for the first GPU use of `tasks`; in `lone` calls, their process is alone."""
    what, workers = effect.what.strip("`"), task.call.workers
    undisturbed = bool(lone) and not uses_gpu_in_parent(program)
    nobody = "no other process of this program uses it meanwhile"
    if effect.gpu_use == "implied":
        takes = nobody if undisturbed else "each worker process takes its own share of it"
        return (
            f"`{what}` makes TensorFlow take the GPU's memory inside {workers}, wherever there is "
            f"a GPU: {takes}."
        )
    if _fails(task, effect):
        return (
            f"`{what}` would initialise the GPU inside {workers}, and raises an error there, as "
            "the parent starts CUDA before the fork (GG203). In fresh processes, each worker makes "
            "a context of its own on it."
        )
    if undisturbed:
        there = "there is one context at a time" if len(lone) > 1 else "one context is made"
        contexts = f"{nobody}, and {there}"
    elif is_one_process(tasks):
        whose = "the parent's" if uses_gpu_in_parent(program) else "those of other processes"
        contexts = f"this process makes a context of its own on it, beside {whose}"
    else:
        contexts = "each worker process makes a context of its own on it"
    return f"`{what}` initialises the GPU inside {workers}: {contexts}."


def _case(program: Program, task: TaskRun, effect: Effect) -> str:
    """The case of the advice; workers that train or keep a model keep the GPU."""
    own = [it for it in task.effects if it.gpu_use == "context"]
    if _called(effect) == "torch.load" and all(it.site == effect.site for it in own):
        return "weights"
    if task.call.library == "ray":
        return task.call.library
    if task.call.traits.single or any(of_kinds(task.effects, Backward, OptimizerStep)):
        return "whole program"
    models = set[ast.AST]().union(*program.moved.values())
    return "whole program" if any(it.site.node in models for it in own) else ""


def _called(effect: Effect) -> str:
    return effect.what.strip("`").partition("(")[0]


def _first_data(task: TaskRun, effect: Effect[GpuUse]) -> Iterator[Step]:
    """The first allocation on the GPU, if a mere query initializes the context."""
    if not effect.payload.asks:
        return
    for other in of_kinds(task.effects, GpuUse):
        puts = other.gpu_use == "context" and not other.payload.asks
        if puts and consistent(other.when, effect.when):
            yield Step(other.site, f"{code(other.what)} is the first to put something on it")
            return


def _on_other_branches(instead: list[Effect]) -> Iterator[Step]:
    """The first uses of a GPU on other branches."""
    for number, effect in enumerate(instead[:MOST], 1):
        more = len(instead) - MOST if number == MOST else 0
        also = f", and so do {more} more" if more > 0 else ""
        yield Step(effect.site, f"on another branch, {code(effect.what)} does{also}")


def _fails(task: TaskRun, effect: Effect) -> bool:
    """Whether initializing CUDA certainly fails there."""
    return effect.gpu_use == "context" and any(
        task.same_path(effect, first) for first in started_cuda(task.call)
    )


def _in_the_parent(program: Program, task: TaskRun, effect: Effect) -> Fix | None:
    """The returned value's move to the GPU, in the parent instead of the worker."""
    function, moved, call = function_of(task), effect.site.node, task.call.site
    if function is None or not isinstance(moved, ast.Call) or not isinstance(call.node, ast.Call):
        return None
    around = _AROUND_RESULTS.get((task.call.library, getattr(call.node.func, "attr", "")))
    around = ("[", "]") if task.call.library == "joblib" else around
    later = asked(task.call.site) if around is None and task.call.schedule.each else []
    if (around is None and not later) or not isinstance(moved.func, ast.Attribute):
        return None
    made = made_by(task.call)
    if made is None or keyword(made, "return_as") is not None:
        return None
    if not handed_out_alone(program, function, lambda other: other.site == task.call.site):
        return None
    given = [*moved.args, *(item.value for item in moved.keywords)]
    if moved.func.attr not in ("cuda", "to") or not all(
        evaluable(call.module, item) for item in given
    ):
        return None
    returned = [site.node for _, site in task.returns]
    if not returned or any(getattr(node, "value", None) is not moved for node in returned):
        return None
    arguments = source_of(effect.site.module, moved)[
        len(source_of(effect.site.module, moved.func)) :
    ]
    first, last = around or ("", "")
    move = f".{moved.func.attr}{arguments}"
    changes = (
        Replace(effect.site.module, moved, source_of(effect.site.module, moved.func.value)),
        *(
            Wrap(
                call.module,
                result,
                f"{first}result{move} for result in " if first else "",
                last or move,
            )
            for result in later or [call.node]
        ),
    )
    return Fix("unsafe", "move the results in the parent", changes, alone=(function.name,))


_AROUND_RESULTS = {
    ("multiprocessing", "map"): ("[", "]"),
    ("multiprocessing", "starmap"): ("[", "]"),
    ("multiprocessing", "imap"): ("(", ")"),
    ("multiprocessing", "imap_unordered"): ("(", ")"),
    ("multiprocessing", "apply"): ("", ""),
    ("concurrent.futures", "map"): ("(", ")"),
}
"""The brackets around the results of a method: a list, generator or single result."""
