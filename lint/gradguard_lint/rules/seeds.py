"""Modules that fresh worker processes import again, and seeds in them."""

from __future__ import annotations

from gradguard_lint.domain.effects import Effect, Program, TaskRun
from gradguard_lint.domain.payloads import Draw, Seed
from gradguard_lint.domain.starts import IMPORTING
from gradguard_lint.domain.values import Const, Function, Unknown, Value

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.questions import Key

FRESH = ("loky", "spawn", "forkserver")
"""The start methods whose workers inherit no generator."""


def seeds_on_import(program: Program, task: TaskRun, draw: Effect[Draw]) -> list[Effect[Seed]]:
    """Seeds of the generator of `draw` in modules that the worker of `task` imports."""
    homes = imported(program, task, draw)
    return [
        seed
        for seed in program.effects_of(Seed)
        if seed.on_import in homes and seed.payload.framework == draw.payload.framework
        # notebooks are never imported
        if not seed.site.module.is_notebook
    ]


def may_import(program: Program, task: TaskRun, seed: Effect) -> bool:
    """Whether the worker may import the program with `seed`, if others import it."""
    return seed.on_import == program.entry and task.call.root != 1


def repeats(value: Value) -> bool:
    """Whether a seed of that `value` is equal in all processes of a run."""
    return all(
        atom.value is not None
        if isinstance(atom, Const)
        else isinstance(atom, Unknown) and _is_given(atom.key)
        for atom in value.atoms
    )


def _is_given(key: Key | None) -> bool:
    """Whether `key` comes from the environment or command line, which workers inherit."""
    if not isinstance(key, tuple) or not key:
        return False
    if key[0] in ("item", "number"):
        return any(_is_given(part) for part in key[1:])
    return key[0] in ("env", "option", "sys.argv")


def imported(program: Program, task: TaskRun, effect: Effect) -> set[str]:
    """Modules that are certainly imported when the task has `effect`."""
    called = [getattr(atom, "function", atom) for atom in task.task.function.atoms]
    homes = {atom.module.name for atom in called if isinstance(atom, Function)}
    homes |= {site.module.name for site in (effect.site, *(it.site for it in effect.chain[1:]))}
    if task.call.start in IMPORTING:
        homes.add(program.entry)
    elif program.guarded or task.call.root == 1:
        homes.discard(program.entry)  # its definitions are pickled by value
    return imports_of(program, homes)


def imports_of(program: Program, modules: set[str]) -> set[str]:
    """`modules`, and all that they import transitively."""
    left, found = set(modules), set[str]()
    while left:
        module = left.pop()
        found.add(module)
        left |= program.imports.get(module, set()) - found
    return found
