"""Questions about a value, and whether one value satisfies several answers.

A question is a key: ``("eq", x, 1)``, ``("lt", x, 2)``, ``("le", x, 2)``, ``("among", x, names)``
``("contains", x, "cuda")``, ``("type", x, "cpu")`` of a device, or ``("of", x, classes)``; and
``x`` itself asks whether x is true.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Key = Hashable
Answer = tuple[Key, bool]

_KINDS = frozenset({"eq", "lt", "le", "among", "contains", "type", "of"})
_FEW = 8
"""Lengths below this are tried individually."""
_FALSE = (None, False, 0, "", ())
"""False values, which represent all others."""


_TRUTHS = frozenset({"eq", "is", "lt", "le", "cmp", "gpu-present", "not"})
"""First elements of keys of boolean values."""


def is_question(key: Key) -> bool:
    """Whether the value of `key` is a bool."""
    return isinstance(key, tuple) and bool(key) and key[0] in _TRUTHS


def subject_of(key: Key) -> Key:
    """The subject of the question `key`."""
    asked = isinstance(key, tuple) and len(key) == 3 and key[0] in _KINDS
    return key[1] if asked else key  # type: ignore[index]


def some_value(subject: Key, answers: Sequence[Answer]) -> bool:
    """Whether some value of `subject` satisfies all `answers`."""
    values: Sequence[Hashable] | None = None
    classes = False
    for key, truth in answers:
        if key == subject:
            if not truth and values is None:
                values = _FALSE
            continue
        kind, other = _parts(key)
        if truth and kind == "eq":
            values = (other,)
            break
        if truth and kind == "among" and isinstance(other, tuple) and None not in other:
            values = other
        if truth and kind == "type" and values is None:
            values = (other,)
        classes = classes or kind == "of"
    if values is not None:
        sure = values is not _FALSE
        return any(all(_satisfies(subject, value, it, sure) for it in answers) for value in values)
    return (not classes or _some_class(answers)) and _some_number(subject, answers)


def _some_class(answers: Sequence[Answer]) -> bool:
    """Whether some class satisfies the answers."""
    left = EXCLUSIVE_CLASSES
    for key, truth in answers:
        kind, other = _parts(key) if isinstance(key, tuple) and len(key) == 3 else ("", None)
        if kind == "of" and isinstance(other, frozenset):
            if not truth:
                left = left - other
            elif other <= EXCLUSIVE_CLASSES:
                left = left & other
    return bool(left)


EXCLUSIVE_CLASSES = frozenset(
    "builtins." + name
    for name in ("str", "int", "float", "list", "tuple", "set", "dict", "bytes", "")
)
"""Mutually exclusive classes; "" stands for all others."""


def _parts(key: Key) -> tuple[Hashable, Hashable]:
    """The kind of the question `key`, and its operand."""
    assert isinstance(key, tuple)
    return key[0], key[2]


def _satisfies(subject: Key, value: Hashable, answer: Answer, unless_known: bool) -> bool:
    """Whether `value` satisfies the answer; `unless_known` if that is unknown."""
    key, truth = answer
    holds = bool(value) if key == subject else _holds(key, value)
    return unless_known if holds is None else holds is truth


def _holds(key: Key, value: Hashable) -> bool | None:
    """Whether the answer of `key` is true for `value`; None if it doesn't apply."""
    kind, other = _parts(key)
    if kind == "eq":
        return bool(value == other)
    if kind == "among":
        return None if not isinstance(other, tuple) or None in other else value in other
    if kind == "type":
        return value.partition(":")[0] == other if isinstance(value, str) else None
    if kind == "contains":
        return str(other) in value if isinstance(value, str) else None
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return value < other if kind == "lt" else value <= other
    return None


def length_subject(subject: Key) -> Key:
    """The subject whose length is `subject`, if it is a length."""
    is_length = isinstance(subject, tuple) and len(subject) == 3 and subject[:2] == LENGTH
    return subject[2] if is_length else None  # type: ignore[index]


LENGTH = ("number", "len")
"""The first elements of keys of lengths."""


def _some_number(subject: Key, answers: Sequence[Answer]) -> bool:
    """Whether a number, or another value, satisfies the answers; none names a value."""
    is_length = length_subject(subject) is not None
    low, high = -1.0 if is_length else -float("inf"), float("inf")
    low_open, high_open = is_length, False
    excluded: set[Hashable] = set()
    for key, truth in answers:
        if key == subject:
            excluded.add(0)
            continue
        kind, number = _parts(key)
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        if kind == "eq":
            excluded.add(number)
            continue
        if truth and (number < high or (number == high and kind == "lt")):
            high, high_open = number, kind == "lt"
        elif not truth and (number > low or (number == low and kind == "le")):
            low, low_open = number, kind == "le"
    if high - low == 1 and (low >= 1 or is_length) and low_open and high_open:
        return False  # numbers compared with integers of 1 or more count something
    if is_length and high < _FEW:
        return any(
            low < n + (not low_open) and n - (not high_open) < high and n not in excluded
            for n in range(_FEW)
        )
    if low == high:
        return not (low_open or high_open or low in excluded)
    return low < high
