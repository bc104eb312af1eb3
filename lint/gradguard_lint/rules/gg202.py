"""A GPU tensor, array or module is pickled for a process worker."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradguard_lint.domain.conditions import GPU_PRESENT
from gradguard_lint.domain.effects import Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Write
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import Atom, Function, Site, TaskCall, Tensor, Thing
from gradguard_lint.fixes.changes import Fix, Wrap
from gradguard_lint.fixes.task_functions import asks, function_of, reached
from gradguard_lint.fixes.written import argument
from gradguard_lint.rules.base import (
    MOST,
    Report,
    as_written,
    capitalised,
    captured_atoms,
    captures,
    code,
    listed,
    on_gpu,
    origins,
    returns_to_gpu,
    sending_step,
    started_cuda,
)
from gradguard_lint.words import words

CODE = "GG202"

_OF_DEVICES = words("is_cuda is_cpu get_device device")
"""Attributes that show a worker whether a tensor is on a GPU."""

_USES = frozenset({"context", "hinted", "implied"})


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if (GPU_PRESENT, False) in task.call.when:
            continue  # no GPU is used here
        for sent, crossing in task.split_by_initializer(task.contents):
            found = _gpu_objects(program, task, sent, crossing)
            if found:
                yield _report(task, sent, found)


def _report(task: TaskRun, sent: TaskCall, found: dict[str, Atom]) -> Report:
    """The report of GPU objects `found`, sent with the task or the worker's initializer."""
    own = sent is task.task
    found = {as_written(sent, path): atom for path, atom in found.items()}
    named = [*map(code, found)]
    these = capitalised(listed(named))
    are, them = ("is", "it") if len(named) == 1 else ("are", "them")
    copied = ", and its own copy of the data"
    if _shares_memory(task, found.values()):
        copied = " to reach the parent's memory, which the parent must keep meanwhile"
    gets = f"each worker that gets {them}" if own else f"each worker gets {them} as it starts and"
    each = f"{gets} creates its own GPU context{copied}"
    known = any(started_cuda(task.call, named=True))
    if all(map(returns_to_gpu, found.values())) and (known or _forks_later(task, found.values())):
        too = " (GG203)" if known else ""
        each = (
            f"no worker can unpickle {them}, as the parent starts CUDA before the fork{too}. "
            f"In fresh processes, {each}"
        )
    return Report(
        sent.site,
        f"{these} {are} on the GPU and {are} pickled for {task.call.workers}: {each}.",
        (*_put_there(task, found), sending_step(task, sent)),
        call=task.call,
        case=_case(found.values()),
        what=next(iter(found)),
        fix=_on_the_cpu(task) if own else None,
    )


def _shares_memory(task: TaskRun, found: Iterable[Atom]) -> bool:
    """Whether torch shares the GPU memory, as with `multiprocessing`'s pickler."""
    of_torch = (not isinstance(atom, Tensor) or atom.framework == "torch" for atom in found)
    return task.call.channel.forking_pickler and all(of_torch)


def _forks_later(task: TaskRun, found: Iterable[Atom]) -> bool:
    """Whether the workers are forked after the parent put `found` on the GPU."""
    call = task.call
    return call.start == "fork" and call.past is None and any(map(returns_to_gpu, found))


def _is_shared(program: Program, atom: Atom) -> bool:
    """Whether the program itself shares the memory of `atom`."""
    return isinstance(atom, (Tensor, Thing)) and atom.ident in program.shared


def _gpu_objects(
    program: Program, task: TaskRun, sent: TaskCall, crossing: list[tuple[str, Atom, bool]]
) -> dict[str, Atom]:
    """The objects on the GPU that are sent with `sent`, by path."""
    found: dict[str, Atom] = {}
    for path, atom, _ in crossing:
        if on_gpu(atom) and not (_is_shared(program, atom) and _shares_memory(task, (atom,))):
            found.setdefault(path, atom)
    for name, value, _ in captures(program, task) if sent is task.task else ():
        for atom in captured_atoms(task, value):
            if on_gpu(atom):
                found.setdefault(name, atom)
    return found


def _put_there(task: TaskRun, found: dict[str, Atom]) -> Iterator[Step]:
    """The steps at which the `found` objects were put on the GPU."""
    places: dict[Site, list[str]] = {}
    for name, atom in found.items():
        place = _place(task, atom)
        if place is not None:
            places.setdefault(place, []).append(code(name))
    for place, names in list(places.items())[:MOST]:
        these = capitalised(listed(names))
        yield Step(place, f"{these} {'are' if names[1:] else 'is'} put on the GPU here")


def _case(found: Iterable[Atom]) -> str:
    """The case of the advice: a framework's arrays, a module, or others."""
    cases = {
        (atom.framework if atom.grad != "unknown" else "")
        if isinstance(atom, Tensor)
        else getattr(atom, "kind", "")
        for atom in found
    }
    return (cases.pop() if len(cases) == 1 else "") or "other arrays"


def _place(task: TaskRun, atom: Atom) -> Site | None:
    """The place that put `atom` on the GPU."""
    place = atom.place if isinstance(atom, Tensor) else None
    return place or task.places.get(getattr(atom, "ident", 0))


def _on_the_cpu(task: TaskRun) -> Fix | None:
    """A copy of each tensor on the CPU, if the worker doesn't use the GPU."""
    site = task.task.site
    if not task.known or any(effect.gpu_use in _USES for effect in task.effects):
        return None
    nodes: dict[int, ast.expr] = {}
    moved: set[int] = set()
    for path, atom, _ in task.contents[: task.first_at_start]:
        if not on_gpu(atom):
            continue
        node = argument(site, path)
        if node is None or not isinstance(atom, Tensor) or atom.framework != "torch":
            return None  # `.cpu()` moves a module in place, and CuPy has another method
        nodes[id(node)] = node
        moved.add(atom.ident)
    given = [value for value, _ in task.returns]
    if not nodes or any(on_gpu(atom) for value in given for atom in inner(value)):
        return None  # the result would then be on the CPU
    changes = tuple(Wrap(site.module, node, after=".cpu()") for node in nodes.values())
    function = function_of(task)
    safe = (
        function is not None
        and not asks(function.module, _OF_DEVICES)
        and not _writes(task, function, moved)
    )
    return Fix("safe" if safe else "unsafe", "send a copy on the CPU", changes)


def _writes(task: TaskRun, function: Function, moved: set[int]) -> bool:
    """Whether the task may write to the `moved` tensors, visible to a caller in one process."""
    for effect in of_kinds(task.effects, Write):
        changed = (atom for atom in inner(effect.target) if isinstance(atom, Tensor))
        if any(moved & origins(it) for it in changed):
            return True
    return any(
        (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.keyword) and node.arg in ("out", "inplace"))
        or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_"))
        for called in reached(function.module, function.node)
        for node in ast.walk(called)
    )
