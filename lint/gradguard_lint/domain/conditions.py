"""Conditions: what was assumed on the way to a value or an effect, and whether two ways meet.

A condition is a pair ``(key, truth)``. Keys are tuples that say what was asked: ``("eq", x, 1)``,
``("lt", x, 2)``, ``("gpu-present",)``. Questions about one thing are weighed together: what is
equal to 1 is not greater than 1. That at least one of several groups of conditions holds is a
condition, too (`AnyOf`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property, lru_cache

Key = Hashable
Condition = tuple[Key, bool]
Conditions = frozenset[Condition]
NONE: Conditions = frozenset()

GPU_PRESENT = ("gpu-present",)
"""The key of "there is a GPU here": what ``torch.cuda.is_available()`` and its like tell."""

CLAUSES = "clauses"
"""The key under which assumptions have the conditions that ask for one of several groups."""

MOST = 4
"""How many groups of conditions of which one holds are told apart, and how many sets of them."""

_ORDERED = ("eq", "lt", "le")
_ASKED = (*_ORDERED, "contains")


def facts(assumed: Mapping[Key, Hashable]) -> Conditions:
    """What is assumed, as conditions."""
    if not assumed:
        return NONE
    found = frozenset((key, truth) for key, truth in assumed.items() if isinstance(truth, bool))
    clauses = _clauses(assumed)
    return found.union((clause, True) for clause in clauses) if clauses else found


class AnyOf(frozenset[Conditions]):
    """The key of "all conditions of at least one of these groups hold"."""

    @cached_property
    def subjects(self) -> frozenset[Key]:
        """What its conditions are about."""
        return frozenset(_subject(key) for world in self for key, _ in world)


def any_of(worlds: Iterable[Conditions]) -> Conditions:
    """What holds where all conditions of at least one of `worlds` hold.

    Where there are too many of them that is only what they have in common.
    """
    possible = [world for world in worlds if len(world) < 2 or consistent(_plain(world))]
    if not possible:
        return NONE
    common = frozenset.intersection(*possible)
    if len(possible) == 1:
        return common
    apart = AnyOf(_plain(world - common) for world in possible)
    if NONE in apart or not 1 < len(apart) <= MOST:
        return common
    return common | {(apart, True)}


def _plain(when: Conditions) -> Conditions:
    """`when` without what is said of groups of conditions."""
    if any(isinstance(key, AnyOf) for key, _ in when):
        return frozenset(item for item in when if not isinstance(item[0], AnyOf))
    return when


def _subject(key: Key) -> Key:
    return key[1] if isinstance(key, tuple) and len(key) == 3 and key[0] in _ASKED else key


def plain_condition(key: Key, truth: bool) -> Condition:
    """The condition "`key` is `truth`" without negations."""
    while isinstance(key, tuple) and key and key[0] == "not":
        key, truth = key[1], not truth
    return (GPU_PRESENT if key == ("gpu-list",) else key, truth)


@lru_cache(maxsize=4096)
def parts_of(key: Key) -> frozenset[Key]:
    """All that the question `key` is about, and itself."""
    whole = frozenset((key,))
    return whole.union(*map(parts_of, key)) if isinstance(key, (tuple, frozenset)) else whole


def without(when: Conditions, about: frozenset[Key]) -> Conditions:
    """`when` without what it says about any of these."""
    if not when or all(about.isdisjoint(parts_of(key)) for key, _ in when):
        return when
    return frozenset(item for item in when if about.isdisjoint(parts_of(item[0])))


def forget(
    assumed: dict[Key, Hashable], about: frozenset[Key], before: Mapping[Key, Hashable]
) -> None:
    """Assume of these no more than `before`."""
    told = facts(assumed) - facts(before)
    for key, _ in told - without(told, about):
        if isinstance(key, AnyOf):
            assumed[CLAUSES] = _clauses(assumed) - {key}
        else:
            del assumed[key]


def compatible(when: Conditions, assumed: Mapping[Key, Hashable]) -> bool:
    """Whether all of `when` can hold under what is assumed."""
    together: dict[Key, Hashable] | None = None
    held = _clauses(assumed)
    clauses: frozenset[AnyOf] = frozenset()
    if held:
        asked = [_subject(key) for key, _ in when if key not in assumed]
        if any(not clause.subjects.isdisjoint(asked) for clause in held):
            clauses = held
    for key, truth in when:
        if isinstance(key, AnyOf):
            if key not in held:
                clauses |= {key}
            continue
        known = assumed.get(key)
        if known is not None:
            if known != truth:
                return False
            continue
        if isinstance(key, tuple) and len(key) == 3 and key[0] in _ASKED:
            fixed = assumed.get(("value", key[1]))
            if fixed is not None:
                if _holds(key, fixed) is (not truth):
                    return False
            elif key[0] == "eq" and truth and isinstance(key[2], str):
                names_cuda = assumed.get(("contains", key[1], "cuda"))
                if names_cuda is not None and names_cuda is not ("cuda" in key[2]):
                    return False
            elif _numeric(key):
                if together is None:
                    together = {**assumed, **dict(when)}
                if not _some_number(key, together):
                    return False
    if not clauses:
        return True
    about = frozenset().union(*(clause.subjects for clause in clauses))
    told = {(k, v) for k, v in assumed.items() if isinstance(v, bool) and _subject(k) in about}
    told.update(item for item in _plain(when) if _subject(item[0]) in about)
    return _some_world(frozenset(told), clauses)


def _clauses(assumed: Mapping[Key, Hashable]) -> frozenset[AnyOf]:
    return assumed.get(CLAUSES, frozenset())  # type: ignore[return-value]


@lru_cache(maxsize=4096)
def _some_world(told: Conditions, clauses: frozenset[AnyOf]) -> bool:
    """Whether each of `clauses` has a group that can hold with what is `told`.

    One of which a single group is left tells that this group holds.
    """
    together: dict[Key, Hashable] = {}
    assume(together, told)
    while clauses:
        left = {it: [w for w in it if compatible(w, together)] for it in clauses}
        if not all(left.values()):
            return False
        sure = frozenset(it for it, possible in left.items() if len(possible) == 1)
        for clause in sure:
            (world,) = left[clause]
            if not compatible(world, together):
                return False  # two of them tell the opposite
            assume(together, world)
        if not sure:
            return True
        clauses -= sure
    return True


def assume(assumed: dict[Key, Hashable], when: Iterable[Condition]) -> None:
    """Let `when` hold among what is assumed."""
    clauses: set[AnyOf] = set()
    for key, truth in when:
        if isinstance(key, AnyOf):
            clauses.add(key)
            continue
        assumed[key] = truth
        if truth and isinstance(key, tuple) and len(key) == 3 and key[0] == "eq":
            assumed["value", key[1]] = key[2]
    if clauses:
        together = _clauses(assumed) | clauses
        if len(together) <= MOST:
            assumed[CLAUSES] = together


def consistent(*groups: Iterable[Condition]) -> bool:
    """Whether all conditions of all groups can hold at once."""
    together: dict[Key, Hashable] = {}
    for group in groups:
        for item in group:
            if not compatible(frozenset((item,)), together):
                return False
            assume(together, (item,))
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
    if kind == "contains":
        return str(other) in value if isinstance(value, str) else None
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
