"""What decorators and wrappers make of a function."""

from __future__ import annotations

from gradguard_lint.domain.values import Atom, Delayed, Function, Thing, Value, of
from pytest_gradguard.records import replace

CACHE = "joblib.Memory.cache"
"""The name of a cache's decorator that is called without a function."""


def cached(function: Value) -> Value:
    """A function wrapped by ``Memory.cache``."""
    return of(Thing("cached", "cached", parts=(("function", function),)))


OF_CLASSES = {
    "staticmethod": "static",
    "classmethod": "class",
    "property": "property",
    "cached_property": "property",
}
"""What makes something else of a method than a method, and the mark of that."""


def mark(function: Value, what: str) -> Value:
    """`function` with a mark."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Function):
            return of(replace(atom, marks=atom.marks | {what}))
        if isinstance(atom, Delayed) and what == "static":
            return of(replace(atom, function=mark(atom.function, what)))
        return of(atom)

    return function.map(change)


def marked(function: Value, mode: Thing) -> Value:
    """`function` with a grad mode around each call."""
    off = mode.part("off")
    flag = off.constant if off is not None else None
    if flag is None:
        return function
    return mark(function, "no_grad" if flag else "enable_grad")
