"""A worker reads a module's global that the parent changed: the worker imported it again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun
from gradguard_lint.domain.payloads import (
    Capture,
    GlobalWrite,
    ModelChange,
    OptimizerStep,
    Payload,
    Write,
)
from gradguard_lint.domain.shapes import idents
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Instance,
    Table,
    Tensor,
    Thing,
    Value,
)
from gradguard_lint.rules.base import Report, captured_atoms, chain, sites_to
from gradguard_lint.rules.seeds import imported

CODE = "GG109"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if task.call.start in INHERITING:
            continue
        own: set[tuple[str, str]] = set()
        """The globals that the worker or its initializer has set."""
        setters: dict[tuple[str, str], str | None] = {}
        """Functions that set an unset global, in the worker as in the parent."""
        reached: dict[int, tuple[Effect, str]] = {}
        """Objects in globals, by identity, with the read and module of the global."""
        given = {atom.ident for _, atom, _ in task.given if isinstance(atom, Instance)}
        for effect in task.effects:
            captured = effect.payload
            if isinstance(captured, GlobalWrite):
                own.add((captured.module, effect.what))
            if not isinstance(captured, Capture):
                continue
            own_read = (effect, captured.module) if captured.is_global else None
            found = own_read or reached.get(captured.owner)
            if found is None:
                continue
            read, home = found
            if home == program.entry or (home, read.what) in own:
                continue
            if next(captured_atoms(task, captured.value), None) is None:
                continue
            used = _used(effect, captured.value)
            for atom in used.atoms:
                if isinstance(atom, Instance) and atom.ident not in given:
                    reached.setdefault(atom.ident, found)
            if not _trainable(used) and not _trainable(captured.on_import or NOTHING):
                continue
            if _asks_if_set(effect):
                setters.setdefault((home, read.what), effect.site.function)
            known = imported(program, task, effect) | {home}
            setter = setters.get((home, read.what))
            changes = (
                change
                for change in _changes(task, (effect.what, captured.module), used)
                if change.on_import not in known and not _happens_in(change, home, setter)
            )
            change = next(changes, None)
            if change is not None and not _replaced(task, effect, used):
                yield Report(
                    read.site,
                    f"`{read.what}` is a global of `{home}`, which {task.call.workers} import "
                    f"again: `{task.name}` does not see what the parent has changed since its "
                    "own import.",
                    (*chain(read), Step(change.site, f"`{read.what}` is changed here")),
                    call=task.call,
                )
                break


def _used(read: Effect, value: Value) -> Value:
    """The value that is read: for a dict in a subscript, the item."""
    table, statement = value.only, read.site.statement
    if not isinstance(table, Table) or statement is None:
        return value
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and node.value is read.site.node:
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return table.get(key) or UNKNOWN
    return UNKNOWN


def _trainable(value: Value) -> bool:
    return any(
        isinstance(atom, Tensor)
        or (isinstance(atom, Instance) and atom.cls.what in ("torch", "keras"))
        or (
            isinstance(atom, Thing)
            and atom.kind in ("model", "keras-model", "keras-layer", "optimizer")
        )
        for atom in value.atoms
    )


def _asks_if_set(read: Effect) -> bool:
    """Whether the read tests if the global is set: ``if NET is None:``, ``if not NET:``."""
    statement = read.site.statement
    if not isinstance(statement, ast.If):
        return False
    for node in ast.walk(statement.test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            asked = node.left
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            asked = node.operand
        else:
            continue
        if asked is read.site.node:
            return True
    return False


def _happens_in(change: Effect, home: str, function: str | None) -> bool:
    """Whether that function of `home`, or one that it calls, makes the change."""
    return function is not None and any(
        site.function == function and site.module.name == home for site in sites_to(change)
    )


def _changes(task: TaskRun, read: tuple[str, str], used: Value) -> Iterator[Effect]:
    """The parent's changes before the call, of the global or its value `used`.

    `read` is the global's name and module.
    """
    wanted = idents(used)
    for effect in task.call.so_far(GlobalWrite, ModelChange, OptimizerStep, Write):
        if isinstance(effect.payload, GlobalWrite):
            if (effect.what, effect.payload.module) == read:
                yield effect
        elif wanted & idents(effect.target):
            yield effect


def _replaced(task: TaskRun, read: Effect, used: Value) -> bool:
    """Whether the worker replaces all that is `used`, before or by that `read`."""
    passed = False
    for effect in task.effects:
        passed = passed or effect is read
        if (
            _is_whole(effect.payload)
            and effect.when <= read.when
            and all(any(_is_same(atom, it) for it in effect.target.atoms) for atom in used.atoms)
        ):
            return not passed or _receiver(effect) is read.site.node
    return False


def _is_whole(change: Payload) -> bool:
    if isinstance(change, Write):
        return change.whole
    return isinstance(change, ModelChange) and change.extent == "whole"


def _is_same(one: Atom, other: Atom) -> bool:
    """Whether both are the same tensor or model, not a part."""
    if not isinstance(one, (Instance, Tensor, Thing)) or type(one) is not type(other):
        return False
    return one.ident > 0 and one.ident == getattr(other, "ident", 0)


def _receiver(change: Effect) -> ast.AST | None:
    """The receiver of the method call that makes `change`."""
    receiver: ast.AST | None = getattr(getattr(change.site.node, "func", None), "value", None)
    return receiver.value if isinstance(receiver, ast.Subscript) else receiver
