"""What decorators and wrappers make of a function."""

from __future__ import annotations

import ast

from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Delayed,
    External,
    Frame,
    Function,
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
"""The name of a cache's decorator that is called without a function."""


def cached(function: Value) -> Value:
    """A function wrapped by ``Memory.cache``."""
    return of(Thing("cached", "cached", parts=(("function", function),)))


OF_CLASSES = {
    "staticmethod": ("static",),
    "classmethod": ("class",),
    "property": ("property",),
    "cached_property": ("property", CACHED_PROPERTY),
}
"""What makes something else of a method than a method, and the marks of that."""


def mark(function: Value, *what: str) -> Value:
    """`function` with marks."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Function):
            return of(replace(atom, marks=atom.marks.union(what)))
        if isinstance(atom, Delayed) and what == ("static",):
            return of(replace(atom, function=mark(atom.function, *what)))
        return of(atom)

    return function.map(change)


def marked(function: Value, mode: Thing) -> Value:
    """`function` with a grad mode around each call."""
    off = mode.part("off")
    flag = off.constant if off is not None else None
    if flag is None:
        return function
    return mark(function, "no_grad" if flag else "enable_grad")


def keeping(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """What makes a function keep what it gave: called with one, or with how much it keeps."""
    given = args.get(0, "maxsize", "user_function")
    if given is not None and any(given.of(Function)):
        return mark(given, CACHED)
    return UNKNOWN if given is not None and given.constant == 0 else of(External(row.flag))
