"""A backward pass runs in a process worker: the gradients stay with the worker's copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import consistent
from gradguard_lint.domain.effects import Effect, Program, TaskRun
from gradguard_lint.domain.payloads import (
    Backward,
    Escape,
    GradClear,
    GradRead,
    GradWrite,
    MemoryUse,
    ModelChange,
    ModelUse,
    OptimizerStep,
    UnknownCall,
    Write,
)
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import GRADIENT, OUTPUT, Instance, Method, Site, Tensor, Thing
from gradguard_lint.engine.tree import parents_in
from gradguard_lint.rules.base import Report, chain, dispatch_step, origins, place
from gradguard_lint.rules.left_behind import returns_numbers, trained_objects, with_owners

CODE = "GG106"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        direct = _direct_call(task)
        if direct is not None:
            yield Report(
                task.task.site,
                f"`{direct}` runs on a copy in {task.call.workers}: the original in the parent "
                "does not change.",
                (dispatch_step(task),),
                call=task.call,
            )
            continue
        yield from left_behind(program, task)


def _direct_call(task: TaskRun) -> str | None:
    for atom in task.task.function.atoms:
        if not isinstance(atom, Method):
            continue
        receiver = atom.receiver
        if (
            atom.name == "backward"
            and isinstance(receiver, Tensor)
            and (receiver.framework == "torch" and receiver.grad != "none")
        ):
            return "backward"
        if atom.name == "step" and isinstance(receiver, Thing) and receiver.kind == "optimizer":
            return "step"
    return None


def left_behind(program: Program, task: TaskRun) -> Iterator[Report]:
    trained = [*trained_objects(task)]
    for made in program.process_tasks() if task.call.traits.actor else ():
        if made.call.ident == task.call.traits.actor:
            trained += trained_objects(made)
    shipped = {ident for _, own in trained for ident in own}
    stays = returns_numbers(task) if task.call.channel.answers else _keeps_gradients(task, shipped)
    if not shipped or not stays:
        return
    if not all(map(returns_numbers, program.of_actor(task.call.traits.actor))):
        return  # another method may return them
    if any(map(_leaves_gradients, task.effects)):
        return
    cleared: set[int] = set()
    # An actor has copies of the arguments it was created with.
    given_as = program.sent_back if task.call.traits.actor else {}
    for effect in task.effects:
        target = {given_as.get(ident, ident) for ident in idents(effect.target)}
        if isinstance(effect.payload, GradClear):
            cleared |= target
        if not isinstance(effect.payload, Backward) or "backward" not in effect.what:
            continue  # `autograd.grad` returns the gradients instead of storing them
        reached = shipped & target
        if not reached:
            continue
        cleared_first = all(with_owners(trained, {part}) & cleared for part in reached)
        use = _used_by_parent(
            program, task, with_owners(trained, reached), effect.site, cleared_first=cleared_first
        )
        if use is not None:
            yield Report(
                effect.site,
                f"The gradients of this backward pass stay in {task.call.workers}: `{task.name}` "
                f"does not return them, and {use}.",
                chain(effect),
                call=task.call,
            )
            return


def _leaves_gradients(effect: Effect) -> bool:
    """Whether gradients are saved, or passed to unknown code: the parent may read a file."""
    payload = effect.payload
    reachable = payload.reachable if isinstance(payload, Escape) else ()
    return (isinstance(payload, Escape) or _is_saved(effect)) and any(
        isinstance(atom, Tensor) and GRADIENT in origins(atom)
        for value in (effect.target, *reachable)
        for atom in inner(value)
    )


def _is_saved(effect: Effect) -> bool:
    return isinstance(effect.payload, ModelUse) and effect.payload.does in ("save", "state")


_LEAKING = (Escape, GradRead, GradWrite, ModelChange, OptimizerStep, UnknownCall, Write)


def _may_leak(effect: Effect) -> bool:
    """Whether the effect moves more than numbers out of a process: by shared memory, a file …"""
    if isinstance(effect.payload, MemoryUse):
        return effect.payload.does == "written"
    return _is_saved(effect) or isinstance(effect.payload, _LEAKING)


def _keeps_gradients(task: TaskRun, shipped: set[int]) -> bool:
    """Whether the gradients of `shipped` certainly stay in a process that returns no result."""
    return task.known and not any(
        (_may_leak(effect) and not _is_unrelated(task, shipped, effect))
        or (isinstance(effect.payload, Backward) and "backward" not in effect.what)
        for effect in task.effects
    )


def _is_unrelated(task: TaskRun, shipped: set[int], effect: Effect) -> bool:
    """Whether the effect certainly has nothing to do with what the worker trains."""
    payload = effect.payload
    if isinstance(payload, Write) and not payload.exact:
        return all(
            isinstance(atom, Tensor)
            and atom.born == task.ident
            and atom.ident not in atom.sources  # not one that was sent
            and (OUTPUT in origins(atom) or shipped.isdisjoint(origins(atom)))
            for atom in effect.target.atoms
        )
    return (
        isinstance(payload, Escape)
        and bool(payload.reachable)
        and not any(
            (isinstance(atom, Thing) and atom.kind in ("model", "optimizer"))
            or (isinstance(atom, Tensor) and not _is_apart(shipped, atom))
            or (isinstance(atom, Instance) and (atom.cls.what or atom.born != task.ident))
            for value in payload.reachable
            for atom in value.atoms
        )
    )


def _is_apart(shipped: set[int], tensor: Tensor) -> bool:
    """Whether `tensor` is neither in `shipped` nor a part or gradient of that."""
    if tensor.ident <= 0:
        return tensor.ident != GRADIENT
    return not tensor.tracked and shipped.isdisjoint(origins(tensor))


def _used_by_parent(
    program: Program, task: TaskRun, reached: set[int], seen_from: Site, *, cleared_first: bool
) -> str | None:
    """The parent's use without the gradients, for the message; None if it may have others.

    `cleared_first`: the task clears gradients first, so it doesn't add to those of the parent.
    """
    for effect in program.effects:
        if effect.worker is not None:
            continue
        if isinstance(effect.payload, GradWrite) and (
            effect.target.is_unknown or reached & idents(effect.target)
        ):
            return None  # it may have shared or transferred them
        if task.call.ident not in effect.calls or not reached & idents(effect.target):
            continue
        if not consistent(task.call.when, effect.when):
            continue  # mutually exclusive
        use = effect.payload
        if isinstance(use, Backward):
            return None  # from here on the parent has gradients of its own
        if task.call.ident not in effect.waits or not isinstance(use, (GradRead, OptimizerStep)):
            continue
        if cleared_first and use.fresh:
            continue
        if isinstance(use, OptimizerStep):
            return f"the parent's optimizer steps without them ({place(effect.site, seen_from)})"
        if _is_read(effect):
            return f"the parent reads `.grad` ({place(effect.site, seen_from)})"
    return None


def _is_read(effect: Effect) -> bool:
    """Whether ``.grad`` is used, not only cleared or tested for None."""
    node, statement = effect.site.node, effect.site.statement
    above = parents_in(statement if statement is not None else node)
    around = above.get(node)
    while isinstance(around, ast.NamedExpr) or (
        isinstance(around, ast.Attribute) and around.attr == "data"
    ):
        around = above.get(around)
    if isinstance(around, ast.Attribute):
        return not around.attr.endswith("_")  # changed in place
    if not isinstance(around, ast.Compare) or not isinstance(around.ops[0], (ast.Is, ast.IsNot)):
        return True
    return isinstance(statement, ast.Assert) and isinstance(around.ops[0], ast.IsNot)
