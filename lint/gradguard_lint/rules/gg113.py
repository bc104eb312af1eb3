"""A tensor with hooks, or a module with one, is sent to workers without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Backward, Graph, Hook, UnknownCall
from gradguard_lint.domain.values import Atom, Instance, Tensor, Thing, Unknown
from gradguard_lint.rules.base import (
    Report,
    as_written,
    capitalised,
    captures,
    code,
    place,
    sending_step,
)

CODE = "GG113"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        hooks = _hooks(task) if task.call.channel.ships else []
        if not hooks or _takes_no_gradients(task):
            continue
        if task.own_pickling:
            continue  # it may register its hooks again
        crossing = [
            (sent, path, atom)
            for sent, found in task.split_by_initializer(task.contents)
            for path, atom, _ in found
        ]
        crossing += [
            (task.task, path, atom)
            for path, value, _ in captures(program, task)
            for atom in value.atoms
        ]
        for sent, path, atom in crossing:
            hook = next((hook for hook in hooks if _holds(atom, hook)), None)
            if hook is not None:
                path = as_written(sent, path)
                named = capitalised(code(path))
                yield Report(
                    sent.site,
                    f"{named} goes to {task.call.workers} without its hooks: the hook registered "
                    f"at {place(hook.site, sent.site)} does not run in `{task.name}`.",
                    (Step(hook.site, "the hook is registered here"), sending_step(task, sent)),
                    call=task.call,
                    what=path,
                )
                break


def _hooks(task: TaskRun) -> list[Effect[Hook]]:
    """Hooks in place when the task is sent that the worker doesn't register again."""
    before = task.call.earlier(Hook)
    removed = _tensors(it for it in before if it.payload.removed)
    removed |= _tensors(it for it in of_kinds(task.effects, Hook) if not it.payload.removed)
    return [
        effect
        for effect in before
        if not effect.payload.removed and effect.worker is None
        if not _tensors([effect]) & removed and task.same_path(effect, effect)
    ]


def _tensors(effects: Iterable[Effect]) -> set[Atom | int]:
    """The hooked tensors of `effects`: their identities, and atoms without one."""
    return {
        atom.ident if isinstance(atom, Tensor) else atom
        for effect in effects
        for atom in effect.target.atoms
    }


def _takes_no_gradients(task: TaskRun) -> bool:
    """Whether the worker certainly computes no gradients, so that no hook runs."""
    return task.known and not any(of_kinds(task.effects, Backward, Graph, UnknownCall))


def _holds(atom: Atom, hook: Effect) -> bool:
    """Whether pickling `atom` includes the tensor of `hook`."""
    for target in hook.target.atoms:
        if isinstance(target, Tensor):
            if target.ident <= 0 or not isinstance(atom, (Instance, Tensor, Thing)):
                continue
            if isinstance(atom, Thing) and atom.kind == "state":
                continue  # a state_dict's tensors are detached
            kept = not isinstance(atom, Tensor) or atom.tracked  # otherwise it is detached
            if atom.ident == target.ident and kept:
                return True
        elif isinstance(target, Unknown) and isinstance(atom, Unknown) and _within(target, atom):
            return True
    return False


def _within(part: Unknown, whole: Unknown) -> bool:
    """Whether `part` is `whole`, or an attribute or item of it."""
    key = part.key
    while isinstance(key, tuple) and key != whole.key and key[0] in ("attr", "item"):
        key = key[1]
    return key is not None and key == whole.key
