"""A task writes, through torch, into joblib's memory map of an argument."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import MemoryUse, OptimizerStep
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import Tensor, Unknown
from gradguard_lint.fixes.changes import Fix, Wrap
from gradguard_lint.fixes.later import reads_again
from gradguard_lint.rules.base import Report, captures, chain, sites_to

CODE = "GG306"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if task.call.channel.maps is None:
            continue
        stepped = any(of_kinds(task.effects, OptimizerStep))
        for effect in of_kinds(task.effects, MemoryUse):
            does = effect.payload.does
            if does == "written" or (does == "parameter" and stepped):
                report = _report(program, task, effect)
                if report is not None:
                    yield report
                    break


def _report(program: Program, task: TaskRun, effect: Effect[MemoryUse]) -> Report | None:
    memory = _memory(effect)
    name = _mapped_argument(program, task, memory) if memory is not None else None
    if name is None or task.call.channel.maps is None:
        return None
    limit, mode = task.call.channel.maps
    called = name if name.startswith("argument ") else f"`{name}`"
    what = effect.what if effect.payload.does == "written" else "the optimizer"
    size = f"{limit // 1024:,} KiB" if limit % (1 << 20) else f"{limit >> 20} MiB"
    if mode == "r":
        message = (
            f"{what} writes to {called}, which is a read-only memory map in {task.call.workers}: "
            f"joblib maps each array above {size}. The write kills the worker"
            + (", and the call waits forever." if task.call.start == "fork" else ".")
        )
    else:
        message = (
            f"{what} writes to {called}, which is one file for all {task.call.workers} "
            f"(`mmap_mode={mode!r}`): the tasks overwrite each other's input."
        )
    trace = (
        Step(task.call.site, f"arrays above {size} go to {task.call.workers} as memory maps"),
        *chain(effect),
    )
    return Report(effect.site, message, trace, call=task.call, what=name, fix=_copied(task, memory))


def _memory(effect: Effect) -> Key:
    """The array whose memory the effect writes to, if there is one."""
    found = {atom.memory for atom in effect.target.atoms if isinstance(atom, Tensor)}
    return found.pop() if len(found) == 1 else None


def _mapped_argument(program: Program, task: TaskRun, memory: Key) -> str | None:
    """The name of the mapped argument; None if it may be small, or isn't an argument."""
    assert task.call.channel.maps is not None
    limit, mode = task.call.channel.maps
    found: list[tuple[str, tuple[int, ...], bool]] = []
    for path, atom, private in task.contents:
        if isinstance(atom, Tensor) and atom.framework == "numpy" and atom.memory == memory:
            found.append((path, atom.extent, private))
        elif isinstance(atom, Unknown) and atom.key == memory:
            found.append((path, (), private))
    if isinstance(memory, tuple) and memory[:2] == ("sent", task.ident):
        found.append((_parameter(task, memory[2]), (), bool(memory[3])))
    if task.call.start == "loky":
        found += [
            (path, atom.extent, False)
            for path, value, _ in captures(program, task)
            for atom in inner(value)
            if isinstance(atom, Tensor) and atom.memory == memory
        ]
    for _, extent, private in found:
        if prod(extent) <= limit if extent else private:
            return None
        if mode != "r" and (private or not task.call.many):
            return None  # each task has its own file
    return found[0][0] if found else None


def _parameter(task: TaskRun, name: object) -> str:
    """The name of an argument of unknown value."""
    if not isinstance(name, int):
        return str(name)
    return "".join(task.task.names[name : name + 1]) or f"argument {name + 1}"


def _copied(task: TaskRun, memory: Key) -> Fix | None:
    """A copy of the array for the task's writes."""
    made = [
        effect
        for effect in of_kinds(task.effects, MemoryUse)
        if effect.payload.does == "shared" and _memory(effect) == memory
    ]
    if not made or any(
        reads_again(site)  # a later read would see the written values
        for effect in made
        for site in sites_to(effect)
        if site != task.task.site
    ):
        return None
    changes = tuple(Wrap(effect.site.module, effect.site.node, after=".clone()") for effect in made)
    return Fix("unsafe", "write to a copy of the array", changes)
