"""Ranks wrap one module in shared memory, and each rank steps it."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import LibraryUse, OptimizerStep
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import idents
from gradguard_lint.domain.values import RANK, Unknown
from gradguard_lint.rules.base import Report, dispatch_step, steps_to
from gradguard_lint.rules.left_behind import is_module, stepped

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.effects import Q

CODE = "GG506"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        shared = _in_shared_memory(program, task) if task.call.many else {}
        for wrapped in _in_every_rank(task, LibraryUse):
            if wrapped.payload.use != "wrapped on the CPU":
                continue
            modules = shared.keys() & idents(wrapped.payload.values[0])
            steps = _in_every_rank(task, OptimizerStep)
            step = next((it for it in steps if stepped(it) & modules), None)
            if step is None:
                continue
            path = shared[min(modules)]
            yield Report(
                task.task.site,
                f"`{path}` is in shared memory, and every rank that runs `{task.name}` wraps it in "
                "DistributedDataParallel: each of them steps the same parameters, so that every "
                "step is made once per rank.",
                (
                    dispatch_step(task),
                    *steps_to(wrapped, "each rank wraps the shared module here"),
                    Step(step.site, "each rank steps the shared parameters here"),
                ),
                call=task.call,
                what=path,
            )
            break


def _in_shared_memory(program: Program, task: TaskRun) -> dict[int, str]:
    """The modules that the ranks share: identity and path."""
    channel = task.call.channel
    pickled = channel.ships and channel.forking_pickler
    return {
        atom.ident: path
        for path, atom, own in task.given
        if is_module(atom)
        and (pickled or atom.ident in program.shared)
        and (not own or atom.ident in program.shared_once)
    }


def _in_every_rank(task: TaskRun, kind: type[Q]) -> Iterator[Effect[Q]]:
    """Effects of this kind that don't depend on the rank."""
    ranks = {atom.key for _, atom, own in task.given if own and isinstance(atom, Unknown)}
    for effect in of_kinds(task.effects, kind):
        if not any(_asks_for(key, {*ranks, RANK} - {None}) for key, _ in effect.when):
            yield effect


def _asks_for(key: Key, ranks: set[Key]) -> bool:
    """Whether a condition depends on one of `ranks`, or is about the main process by its name."""
    if key in ranks:
        return True
    if isinstance(key, str):
        return any(word in key.lower() for word in ("rank", "main", "master"))
    return isinstance(key, (tuple, frozenset)) and any(_asks_for(part, ranks) for part in key)
