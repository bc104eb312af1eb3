"""The values sent with a task: its function and arguments, their contents and names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import Conditions
from gradguard_lint.domain.effects import ParallelCall
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Bound,
    Const,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    Table,
    TaskCall,
    Thing,
    Unknown,
    Value,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.pickling import state_of
from gradguard_lint.engine.tree import free_names

CALLED = "the function"
"""The name of the task's function in reports."""


def functions_in(value: Value) -> Iterator[Atom]:
    """The functions of `value`, without partials."""
    for atom in value.atoms:
        if isinstance(atom, Partial):
            yield from functions_in(atom.function)
        else:
            yield atom


def _contents(
    m: Machine, value: Value, path: str, depth: int = 3
) -> Iterator[tuple[str, Atom, Conditions]]:
    """What pickling `value` visits: the atoms in containers, partials and objects."""
    for choice in m.filtered(value).choices:
        atom = choice.atom
        yield path, atom, choice.when
        if isinstance(atom, Unknown) and m.facts.evidence.is_proved(atom.subject, "module"):
            yield path, m.models.proved(m, atom.subject, "module", 0), choice.when
        if depth <= 0:
            continue
        parts = _parts(m, atom, path)
        if isinstance(atom, Instance) and parts:
            moved = m.read(atom.ident, "<gpu>")
            for part in moved.choices if moved is not None else ():
                if isinstance(part.atom, Const) and part.atom.value is True:
                    model = Thing("model", atom.cls.name, atom.ident, gpu=True)
                    yield path, model, choice.when | part.when
        if isinstance(atom, Items) and atom.items is None:
            parts.append((f"{path}[...]", atom.element))
        elif isinstance(atom, Table):
            parts.append((f"{path}[...]", atom.rest))
        for name, item in parts:
            for inner_path, inner_atom, when in _contents(m, item, name, depth - 1):
                yield inner_path, inner_atom, when | choice.when


def _parts(m: Machine, atom: Atom, path: str) -> list[tuple[str, Value]]:
    """What pickling `atom` certainly visits next, with paths."""
    if isinstance(atom, Items):
        return [(f"{path}[{index}]", item) for index, item in enumerate(atom.items or ())]
    if isinstance(atom, Table):
        return [(f"{path}[{key!r}]", item) for key, item in atom.entries]
    if isinstance(atom, Partial):
        names = _parameters(atom.function)
        parts = [
            (names[index].lstrip("*") if index < len(names) else f"{path}.args[{index}]", item)
            for index, item in enumerate(atom.args)
        ]
        return [*parts, *atom.keywords, (path, atom.function)]
    if isinstance(atom, Function) and isinstance(atom.node, ast.Lambda) and atom.defaults:
        names = [item.arg for item in atom.node.args.args][-len(atom.defaults) :]
        return list(zip(names, atom.defaults, strict=False))
    if isinstance(atom, Bound):
        return [("self", of(atom.receiver))]
    if isinstance(atom, Method) and (path == CALLED or not isinstance(atom.receiver, Instance)):
        # Library classes may give their objects any other attribute.
        return [(path, of(atom.receiver))]
    if isinstance(atom, Instance) and (state := state_of(m, atom)) is not None:
        return [(f"{path}.{name}", item) for name, item in state.items()]
    return []


def is_refused(m: Machine, task: TaskCall, call: ParallelCall) -> bool:
    """Whether a task certainly can't be pickled, so that it never runs."""
    sent = [*task.args, *(value for _, value in task.keywords)]
    sent += [] if call.traits.actor else [task.function]
    seen = set[int]()
    return any(_has_refused(m, value, call, seen) for value in sent)


def _has_refused(
    m: Machine, value: Value, call: ParallelCall, seen: set[int], depth: int = 6
) -> bool:
    """Whether `value` certainly contains an unpicklable object; those in `seen` are skipped."""

    def refused(atom: Atom) -> bool:
        if m.models.refuses_pickling(atom, standard=call.channel.forking_pickler):
            return True
        if isinstance(atom, Instance):
            if atom.ident in seen or not atom.cls.plain:
                return False  # library classes may customise pickling
            seen.add(atom.ident)
        parts = _parts(m, atom, "") if depth else []
        return any(_has_refused(m, item, call, seen, depth - 1) for _, item in parts)

    return all(map(refused, m.filtered(value).atoms))


def shipped(m: Machine, call: ParallelCall, task: TaskCall) -> list[tuple[str, Atom, bool]]:
    """The atoms sent with the task, each with its name and whether only this task has it."""
    sent: list[tuple[str, Value, bool]] = [
        (_name(task, index), value, index in task.private) for index, value in enumerate(task.args)
    ]
    sent += [(name, value, name in task.private_names) for name, value in task.keywords]
    if not call.traits.actor:
        sent.append((CALLED, task.function, -1 in task.private))
        if call.channel.ships:
            sent += ((name, value, False) for name, value in _enclosed(m, task.function))
    return [
        (path, atom, private)
        for name, value, private in sent
        for path, atom, when in _contents(m, value, name)
        if not m.conflicts(when)
    ]


def _enclosed(m: Machine, called: Value) -> Iterator[tuple[str, Value]]:
    """Objects of the program that functions capture from enclosing functions."""
    for atom in functions_in(called):
        if not isinstance(atom, Function) or atom.frame.parent is None or atom.frame.is_class:
            continue
        for name in free_names(atom.node):
            value, home = m.lookup(atom.frame, name) or (UNKNOWN, None)
            if home is not None and home.parent is not None:
                yield name, Value(tuple(it for it in value.choices if _is_own_object(it.atom)))


def _is_own_object(atom: Atom) -> bool:
    """Whether `atom` is an object of a program class without library bases."""
    return isinstance(atom, Instance) and not atom.cls.what


def _name(task: TaskCall, index: int) -> str:
    """The name of an argument in reports: its expression, parameter, or position; for an argument
    at an unknown position, the container."""
    if task.unplaced is not None and index >= task.unplaced:
        return task.unplaced_name or "an argument"
    if index < len(task.names) and task.names[index]:
        return task.names[index]
    names = _parameters(task.function)
    if names and names[-1].startswith("*") and index >= len(names) - 1:
        return f"{names[-1][1:]}[{index - len(names) + 1}]"
    if index < len(names):
        return names[index]
    return f"argument {index + 1}"


def _parameters(called: Value) -> list[str]:
    """Positional parameter names of a function, with ``*args`` at the end."""
    for atom in called.atoms:
        function = atom.function if isinstance(atom, Bound) else atom
        if isinstance(function, Function):
            spec = function.node.args
            names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
            names = names[isinstance(atom, Bound) :]
            return names if spec.vararg is None else [*names, f"*{spec.vararg.arg}"]
        if isinstance(atom, Partial):
            return _parameters(atom.function)[len(atom.args) :]
    return []
