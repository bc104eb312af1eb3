"""Conditions: what was assumed on the way to a value or an effect, and whether two ways meet.

A condition is a pair ``(key, truth)``. Keys are tuples that say what was asked: ``("eq", x, 1)``,
``("lt", x, 2)``, ``("gpu-present",)``. Questions about one thing are weighed together: what is
equal to 1 is not greater than 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache

Key = Hashable
Condition = tuple[Key, bool]
Conditions = frozenset[Condition]
NONE: Conditions = frozenset()

GPU_PRESENT = ("gpu-present",)
"""The key of "there is a GPU here": what ``torch.cuda.is_available()`` and its like tell."""

_ORDERED = ("eq", "lt", "le")


def facts(assumed: Mapping[Key, Hashable]) -> Conditions:
    """What is assumed, as conditions."""
    if not assumed:
        return NONE
    return frozenset((key, truth) for key, truth in assumed.items() if isinstance(truth, bool))


def plain_condition(key: Key, truth: bool) -> Condition:
    """The condition "`key` is `truth`" without negations."""
    while isinstance(key, tuple) and key and key[0] == "not":
        key, truth = key[1], not truth
    return (GPU_PRESENT if key == ("gpu-list",) else key, truth)


@lru_cache(maxsize=4096)
def parts_of(key: Key) -> frozenset[Key]:
    """All that the question `key` is about, and itself."""
    whole = frozenset((key,))
    return whole.union(*map(parts_of, key)) if isinstance(key, tuple) else whole


def without(when: Conditions, about: frozenset[Key]) -> Conditions:
    """`when` without what it says about any of these."""
    if not when or all(about.isdisjoint(parts_of(key)) for key, _ in when):
        return when
    return frozenset(item for item in when if about.isdisjoint(parts_of(item[0])))


def compatible(when: Conditions, assumed: Mapping[Key, Hashable]) -> bool:
    """Whether all of `when` can hold under what is assumed."""
    together: dict[Key, Hashable] | None = None
    for key, truth in when:
        known = assumed.get(key)
        if known is not None and known != truth:
            return False
        if isinstance(key, tuple) and len(key) == 3 and key[0] in _ORDERED:
            fixed = assumed.get(("value", key[1]))
            if fixed is not None:
                if _holds(key, fixed) is (not truth):
                    return False
            elif _numeric(key):
                if together is None:
                    together = {**assumed, **dict(when)}
                if not _some_number(key, together):
                    return False
    return True


def consistent(*groups: Iterable[Condition]) -> bool:
    """Whether all conditions of all groups can hold at once."""
    together: dict[Key, Hashable] = {}
    for group in groups:
        for key, truth in group:
            if not compatible(frozenset(((key, truth),)), together):
                return False
            together[key] = truth
            if truth and isinstance(key, tuple) and len(key) == 3 and key[0] == "eq":
                together["value", key[1]] = key[2]
    return True


def alternatives(first: Iterable[Condition], second: Iterable[Condition]) -> bool:
    """Whether these may be two settings of which a user gives one.

    Each asks for an option of the same object, and none for the same: `args.only_gpu` and
    `args.mix`. Whether both can be given is told nowhere that is read.
    """
    ones, others = _options(first), _options(second)
    return any(ones[home].isdisjoint(others[home]) for home in ones.keys() & others.keys())


def _options(when: Iterable[Condition]) -> dict[Hashable, set[str]]:
    """The options that have to be given, by what they are options of."""
    found: dict[Hashable, set[str]] = {}
    for key, truth in when:
        if truth and isinstance(key, tuple) and len(key) == 3 and key[0] not in _ORDERED:
            home, name = key[:2], key[2]
            if isinstance(name, str):
                found.setdefault(home, set()).add(name)
    return found


def _numeric(key: tuple[Hashable, ...]) -> bool:
    return isinstance(key[2], (int, float)) and not isinstance(key[2], bool)


def _holds(key: tuple[Hashable, ...], value: Hashable) -> bool | None:
    """Whether the question `key` is true of `value`."""
    kind, _, other = key
    if kind == "eq":
        return value == other
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return value < other if kind == "lt" else value <= other
    return None


def _some_number(key: tuple[Hashable, ...], assumed: Mapping[Key, Hashable]) -> bool:
    """Whether some number meets all that is assumed about what `key` is about."""
    low, high = -float("inf"), float("inf")
    low_open = high_open = False
    excluded = set()
    for other, answer in assumed.items():
        if (
            not isinstance(answer, bool)
            or not isinstance(other, tuple)
            or len(other) != 3
            or other[1] != key[1]
            or other[0] not in _ORDERED
            or not _numeric(other)
        ):
            continue
        kind, _, number = other
        assert isinstance(number, (int, float))
        if kind == "eq" and not answer:
            excluded.add(number)
            continue
        if kind == "eq":
            bounds = ((number, False), (number, False))
        elif answer:
            bounds = ((-float("inf"), False), (number, kind == "lt"))
        else:
            bounds = ((number, kind == "le"), (float("inf"), False))
        (first, first_open), (last, last_open) = bounds
        if first > low or (first == low and first_open):
            low, low_open = first, first_open
        if last < high or (last == high and last_open):
            high, high_open = last, last_open
    if low == high:
        return not low_open and not high_open and low not in excluded
    return low < high
