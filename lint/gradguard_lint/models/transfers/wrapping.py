"""Decorated and wrapped functions."""

from __future__ import annotations

import ast

from gradguard_lint.domain.values import (
    NOTHING,
    STUB,
    UNKNOWN,
    Atom,
    Delayed,
    External,
    Frame,
    Function,
    Instance,
    Thing,
    Value,
    of,
)
from gradguard_lint.engine.caching import CACHED, CACHED_PROPERTY
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from pytest_gradguard.records import replace

CACHE = "joblib.Memory.cache"
"""The name of a cache's decorator without a function."""


def cached(function: Value) -> Value:
    """A function wrapped by ``Memory.cache``."""
    return of(Thing("cached", "cached", parts=(("function", function),)))


OF_CLASSES = {
    "staticmethod": ("static",),
    "classmethod": ("class",),
    "property": ("property",),
    "cached_property": ("property", CACHED_PROPERTY),
}
"""Decorators in classes, with their marks."""


def mark(function: Value, *what: str) -> Value:
    """`function` with further marks."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Function):
            return of(replace(atom, marks=atom.marks.union(what)))
        if isinstance(atom, Delayed) and what == ("static",):
            return of(replace(atom, function=mark(atom.function, *what)))
        return of(atom)

    return function.map(change)


def marked(function: Value, mode: Thing) -> Value:
    """`function` with a grad mode around each call."""
    flag = (mode.part("off") or NOTHING).constant
    if flag is None:
        return function
    return mark(function, "no_grad" if flag else "enable_grad")


def keeping(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A cache decorator: called with a function, or with its size."""
    given = args.get(0, "maxsize", "user_function")
    if given is not None and any(given.of(Function)):
        return mark(given, CACHED)
    return UNKNOWN if given is not None and given.constant == 0 else of(External(row.flag))


THROUGH = "through"
"""The kind of wrappers that iterate another object and lack its attributes: ``tqdm(it)``."""


def goes_through(m: Machine, atom: Atom) -> Value:
    """An iteration wrapper of `atom`; containers represent themselves."""
    if not isinstance(atom, Instance) or atom.cls.what != STUB:
        return of(atom)
    if m.find_in_class(atom.cls, "__iter__") is None:
        return of(atom)
    return of(Thing(THROUGH, THROUGH, atom.ident, parts=((THROUGH, of(atom)),)))


def within(atom: Atom) -> Value:
    """The object that `atom` wraps for iteration, or `atom` itself."""
    gone = atom.part(THROUGH) if isinstance(atom, Thing) and atom.kind == THROUGH else None
    return of(atom) if gone is None else gone
