"""Facts about unknown values: what they are computed from, and whether processes differ in them."""

from __future__ import annotations

from collections.abc import Hashable

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import Atom, Choice, Const, Unknown, Value, unknown


def drop_default(value: Value) -> Value:
    """`value` without the default of an option that may have any value."""
    if len(value.choices) == 1:
        return value
    keys = {choice.atom.key for choice in value.choices if isinstance(choice.atom, Unknown)}
    kept = [choice for choice in value.choices if not _is_default(choice, keys)]
    return Value(tuple(kept)) if len(kept) < len(value.choices) else value


def _is_default(choice: Choice, keys: set[Key]) -> bool:
    atom = choice.atom
    return isinstance(atom, Const) and any(
        (("eq", key, atom.value), True) in choice.when for key in keys
    )


def computed(name: str, *given: Atom, numeric: bool = True) -> Key:
    """The key of ``name(*given)`` for a pure function; None if an argument may vary or is itself
    computed."""
    keys: list[Key] = []
    for atom in given:
        key = atom.key if isinstance(atom, Unknown) else None
        if isinstance(atom, Const):
            keys.append(("const", atom.value, atom.kind))
        elif key is None or (isinstance(key, tuple) and _is_deep(key)):
            return None
        else:
            keys.append(key)
    return ("number" if numeric else "computed", name, *keys)


def _is_deep(key: tuple[Key, ...]) -> bool:
    """Whether the value of `key` is computed from something computed, or may vary: a text with
    unknown parts, or a result of a place in the source."""
    while key[0] in ("attr", "call", "item") and isinstance(key[1], tuple):
        key = key[1]
    if key[0] == "node":
        return True
    inside = key[2:] if key[0] in _COMPUTED else ()
    return key[0] == "text" or any(
        isinstance(part, tuple) and part and part[0] in (*_COMPUTED, "text") for part in inside
    )


_COMPUTED = ("number", "computed")

OWN = "own"
"""First element of keys that differ between worker processes; last element of keys of texts with
such a part."""


def process_specific(*parts: Hashable) -> Value:
    """A value that differs between worker processes: a rank, or a table's entry for it."""
    return unknown((OWN, *parts))


def process_specific_text(text: str) -> Value:
    """A text in which ``{}`` stands for such a value."""
    return unknown(("text", text, OWN))


def is_process_specific(value: Value) -> bool:
    """Whether `value` may differ between worker processes."""
    keys = (atom.key for atom in value.atoms if isinstance(atom, Unknown))
    return any(isinstance(key, tuple) and OWN in (key[0], key[-1]) for key in keys)
