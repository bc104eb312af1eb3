"""A tensor that requires grad is pickled for a process worker and loses its graph."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun
from gradguard_lint.domain.payloads import (
    Backward,
    GradClear,
    GradRead,
    GradWrite,
    Hook,
    OptimizerStep,
)
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import GRADIENT, UNKNOWN, Atom, TaskCall, Tensor
from gradguard_lint.rules.base import (
    Report,
    as_written,
    capitalised,
    captured_atoms,
    captures,
    code,
    dispatch_step,
    origins,
    sending_step,
)

CODE = "GG101"

_WANTING = (Backward, GradClear, GradRead, GradWrite, Hook, OptimizerStep)
"""Effects of the parent which show that it uses gradients itself."""


def carries_graph(atom: Atom) -> bool:
    """Whether `atom` is a torch tensor, not a parameter, that certainly requires grad."""
    return (
        isinstance(atom, Tensor) and atom.framework == "torch" and atom.grad in ("leaf", "history")
    )


def check(program: Program) -> Iterator[Report]:
    nested = (task for call in program.nested for task in call.tasks)
    for task in (*program.process_tasks(), *nested):
        found = False
        for sent, crossing in task.split_by_initializer(task.contents):
            path, atom = next(
                ((path, atom) for path, atom, _ in crossing if _loses_graph(program, task, atom)),
                ("", None),
            )
            if atom is not None:
                found = True
                yield Report(
                    sent.site,
                    _message(task, sent, path, history=getattr(atom, "grad", "") == "history"),
                    (sending_step(task, sent),),
                    call=task.call,
                )
        if not found:
            for name, value, site in captures(program, task):
                if any(_loses_graph(program, task, atom) for atom in captured_atoms(task, value)):
                    yield Report(
                        task.task.site,
                        f"`{name}` requires grad and is pickled with `{task.name}` for "
                        f"{task.call.workers}: the worker gets a copy, and no gradient comes "
                        "back to the graph here.",
                        (dispatch_step(task), Step(site, f"`{name}` is used here")),
                        call=task.call,
                    )
                    break


def _loses_graph(program: Program, task: TaskRun, atom: Atom) -> bool:
    return carries_graph(atom) and not _belongs_to_task(program, task, atom)


def _belongs_to_task(program: Program, task: TaskRun, atom: Atom) -> bool:
    """Whether the task returns the gradient of this leaf, and the parent doesn't use one."""
    if not isinstance(atom, Tensor) or atom.grad != "leaf" or atom.ident <= 0:
        return False
    found = task.result is not None and any(
        isinstance(it, Tensor) and GRADIENT in origins(it) for it in inner(task.result)
    )
    return (
        found
        and any(_asks_for(effect, atom) for effect in task.effects)
        and not any(
            effect.worker is None and (effect.target.is_unknown or _concerns(effect, atom))
            for effect in program.effects_of(*_WANTING)
        )
    )


def _asks_for(effect: Effect, leaf: Tensor) -> bool:
    """Whether the effect computes the gradient of `leaf` by name, or reads it."""
    if isinstance(effect.payload, GradRead):
        asked = effect.target
    elif isinstance(effect.payload, Backward):
        asked = effect.payload.inputs
    else:
        return False
    return any(isinstance(it, Tensor) and it.ident == leaf.ident for it in inner(asked))


def _concerns(effect: Effect, leaf: Tensor) -> bool:
    asked = effect.payload.inputs if isinstance(effect.payload, Backward) else UNKNOWN
    return leaf.ident in idents(effect.target) | idents(asked)


def _message(task: TaskRun, sent: TaskCall, path: str, *, history: bool) -> str:
    workers, named = task.call.workers, capitalised(code(as_written(sent, path)))
    if history and task.call.channel.forking_pickler:
        fails = "the call fails with an error" if sent is task.task else "no worker starts"
        return (
            f"{named} has history and goes to {workers}: torch refuses to pickle it, and {fails}."
        )
    if task.call.channel.forking_pickler:
        gets = "the worker shares its memory, not its graph, and no gradient comes back."
    else:
        gets = "the worker gets a copy, and no gradient comes back to the graph here."
    kind = "has history" if history else "requires grad"
    return f"{named} {kind} and is pickled for {workers}: {gets}"
