"""What process workers train of the parent's objects, and whether results return any of it."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Capture, OptimizerStep
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import (
    FIGURE,
    GRADIENT,
    NUMERIC,
    OUTPUT,
    Atom,
    Const,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    is_number,
    of,
)
from gradguard_lint.rules.base import captured_atoms, origins

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeGuard


def trained_objects(task: TaskRun) -> Iterator[tuple[str, set[int]]]:
    """Trainable objects of the parent in a task's arguments and captures, by path.

    A worker has a copy of each capture, whether pickled, inherited or imported.
    """
    for path, atom, _ in task.given:
        if _trainable(atom):
            yield path, idents(of(atom))
    for effect in of_kinds(task.effects, Capture):
        for atom in captured_atoms(task, effect.payload.value):
            if _trainable(atom):
                yield effect.what, idents(of(atom))


def stepped(step: Effect[OptimizerStep]) -> set[int]:
    """Identities of what the optimizer steps; empty if its parameters are unknown."""
    parts = [atom.part("parameters") for atom in step.target.of(Thing)]
    known = [part for part in parts if part is not None and not part.is_unknown]
    return set().union(*map(idents, known)) if len(known) == len(step.target.choices) else set()


def with_owners(trained: list[tuple[str, set[int]]], reached: set[int]) -> set[int]:
    """The `reached` objects, and the modules of a task that contain them."""
    parts = [path for path, own in trained if own & reached]
    return reached.union(
        *(own for path, own in trained if any(part.startswith(f"{path}.") for part in parts))
    )


def _trainable(atom: Atom) -> bool:
    if isinstance(atom, Tensor):
        return atom.framework == "torch" and atom.tracked
    return is_module(atom)


def is_module(atom: Atom) -> TypeGuard[Instance | Thing]:
    """Whether `atom` is a torch module."""
    if isinstance(atom, Instance):
        return atom.cls.what == "torch"
    return isinstance(atom, Thing) and atom.kind == "model"


def returns_numbers(task: TaskRun) -> bool:
    """Whether the result certainly contains no gradient, parameter or model."""
    return task.result is not None and all(map(has_no_part, inner(task.result)))


def has_no_part(atom: Atom) -> bool:
    """Whether `atom` in a result is certainly no gradient, parameter or model."""
    if isinstance(atom, Tensor):
        made_from = origins(atom)
        plain = not made_from.isdisjoint((OUTPUT, FIGURE)) or (
            atom.grad == "history" and not atom.ident
        )
        return plain and GRADIENT not in made_from
    return isinstance(atom, (Const, Items, Table)) or is_number(atom) or _is_figure(atom)


def _is_figure(atom: Atom) -> bool:
    """Whether `atom` is an unknown count, size, type or text."""
    key = atom.key if isinstance(atom, Unknown) else None
    for wrapper in ("item", "call"):
        if isinstance(key, tuple) and key[0] == wrapper:
            key = key[1]
    if not isinstance(key, tuple):
        return False
    if key[0] == "attr":
        return key[2] in ("dtype", "layout", "device", "shape", "size", "dim", "ndim", "numel")
    return key[0] in (*NUMERIC, "text", "str", "device-of")
