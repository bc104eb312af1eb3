"""Conditions: the assumptions of one path, and whether two paths are compatible.

A condition is a pair ``(key, truth)``. A key is a tuple that states a question: ``("eq", x, 1)``,
``("gpu-present",)``. Questions about one subject are checked together: what equals 1 is not greater
than 1. A disjunction of groups of conditions is a condition, too (`AnyOf`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from gradguard_lint.domain.questions import LENGTH, Key, length_subject, some_value, subject_of

Condition = tuple[Key, bool]
Conditions = frozenset[Condition]
NONE: Conditions = frozenset()
NEVER: Conditions = frozenset({(("never",), True), (("never",), False)})
"""A contradiction."""

GPU_PRESENT = ("gpu-present",)
"""The key of "a GPU is available", as ``torch.cuda.is_available()`` answers it."""

WITH_A_GPU: Conditions = frozenset({(GPU_PRESENT, True)})
"""Conditions of effects that need a GPU."""

CLAUSES = "clauses"
"""The key of the `AnyOf` conditions among the assumptions."""

MAX_GROUPS = 4
"""The most groups in a disjunction, and the most disjunctions that are kept."""

_FIXED_PREFIXES = (("argument",), ("option",))
"""The first elements of keys of function arguments and program options."""


class Assumed(dict[Key, Hashable]):
    """The assumptions of a path: answers to questions, and known values.

    Answers of `compatible` are cached until an assumption changes.
    """

    __slots__ = ("_facts", "answers")

    def __init__(self, values: Mapping[Key, Hashable] | None = None) -> None:
        self._facts: Conditions | None = None
        self.answers: dict[Conditions, bool] = {}
        """Which conditions can hold here."""
        if values is None:
            return
        super().__init__(values)
        if isinstance(values, Assumed):
            self._facts, self.answers = values._facts, values.answers

    def __setitem__(self, key: Key, value: Hashable) -> None:
        super().__setitem__(key, value)
        self._facts, self.answers = None, {}

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        self._facts, self.answers = None, {}

    def copy(self) -> Assumed:
        return Assumed(self)

    @property
    def facts(self) -> Conditions:
        """The assumptions as conditions."""
        found = self._facts
        if found is None:
            conditions = [(key, it) for key, it in self.items() if isinstance(it, bool)]
            conditions += [(clause, True) for clause in self.clauses]
            found = self._facts = frozenset(conditions)
        return found

    @property
    def clauses(self) -> frozenset[AnyOf]:
        """The disjunctions that are assumed."""
        return self.get(CLAUSES, frozenset())  # type: ignore[return-value]


class AnyOf(frozenset[Conditions]):
    """The key of "all conditions of at least one of these groups hold"."""

    @property
    def subjects(self) -> frozenset[Key]:
        """The subjects of all its conditions."""
        return _subjects(self)

    def shares(self, other: AnyOf) -> bool:
        """Whether both are about one subject, or about its length."""
        return not _related_subjects(self).isdisjoint(_related_subjects(other))


@lru_cache(maxsize=4096)
def _subjects(groups: AnyOf) -> frozenset[Key]:
    return frozenset(subject_of(key) for group in groups for key, _ in group)


@lru_cache(maxsize=4096)
def _related_subjects(groups: AnyOf) -> frozenset[Key]:
    """Subjects of `groups`, those whose length they ask for, and the lengths of both."""
    about = groups.subjects.union(filter(None, map(length_subject, groups.subjects)))
    return about.union((*LENGTH, subject) for subject in about)


def any_of(worlds: Iterable[Conditions]) -> Conditions:
    """The disjunction of `worlds`.

    With too many of them, only their common conditions. If none of them can hold, neither can the
    result.
    """
    worlds = dict.fromkeys(worlds)
    if not worlds or NONE in worlds:
        return NONE
    possible = [world for world in worlds if consistent(world)]
    if not possible:
        return NEVER
    common = frozenset.intersection(*possible)
    if len(possible) == 1:
        return common
    rests = [world - common for world in possible]
    apart = AnyOf(map(plain, rests))
    if any(isinstance(key, AnyOf) for rest in rests for key, _ in rest):
        disjuncts = AnyOf(group for rest in rests for group in _groups(rest))
        apart = disjuncts if 0 < len(disjuncts) <= MAX_GROUPS else apart
    if NONE in apart or len(apart) > MAX_GROUPS:
        return common
    if len(apart) == 1:
        return common.union(*apart)
    return common | {_among(apart) or (apart, True)}


@lru_cache(maxsize=4096)
def _groups(when: Conditions) -> Sequence[Conditions]:
    """The disjuncts of `when` as plain conditions; without those beyond the limit."""
    groups = [plain(when)]
    among = [key for key, _ in when if isinstance(key, AnyOf)]
    if prod(map(len, among)) > MAX_GROUPS * MAX_GROUPS:
        return groups
    for key in among:
        groups = [one | other for one in groups for other in key if consistent(one, other)]
    return groups


def _among(groups: AnyOf) -> Condition | None:
    """The condition "one subject has one of these values", if all `groups` say just that."""
    subjects: set[Key] = set()
    values: set[Hashable] = set()
    for group in groups:
        ((key, truth),) = group if len(group) == 1 else [(None, False)]
        if not truth or not isinstance(key, tuple) or key[0] not in ("eq", "among"):
            return None
        subjects.add(key[1])
        values.update(key[2:] if key[0] == "eq" else key[2])
    if len(subjects) > 1 or None in values:
        return None
    return (("among", subjects.pop(), tuple(sorted(values, key=repr))), True)


def plain(when: Conditions) -> Conditions:
    """`when` without disjunctions."""
    if any(isinstance(key, AnyOf) for key, _ in when):
        return frozenset(item for item in when if not isinstance(item[0], AnyOf))
    return when


def plain_condition(key: Key, truth: bool) -> Condition:
    """The condition "`key` is `truth`", with negations resolved."""
    while isinstance(key, tuple) and key and key[0] == "not":
        key, truth = key[1], not truth
    return (GPU_PRESENT if key in (("gpu-list",), ("gpu-count",)) else key, truth)


@lru_cache(maxsize=4096)
def parts_of(key: Key) -> frozenset[Key]:
    """The key, and all keys nested in it."""
    whole = frozenset((key,))
    return whole.union(*map(parts_of, key)) if isinstance(key, (tuple, frozenset)) else whole


def without(when: Conditions, about: frozenset[Key]) -> Conditions:
    """`when` without conditions about any of these keys."""
    if not when or all(about.isdisjoint(parts_of(key)) for key, _ in when):
        return when
    return frozenset(item for item in when if about.isdisjoint(parts_of(item[0])))


def forget(assumed: Assumed, about: frozenset[Key], before: Assumed) -> None:
    """Drop assumptions about these keys that were not made `before`."""
    new = assumed.facts - before.facts
    for key, _ in new - without(new, about):
        if isinstance(key, AnyOf):
            assumed[CLAUSES] = assumed.clauses - {key}
        else:
            del assumed[key]


def compatible(when: Conditions, assumed: Assumed) -> bool:
    """Whether `when` can hold together with the assumptions."""
    answer = assumed.answers.get(when)
    if answer is None:
        answer = assumed.answers[when] = _compatible(when, assumed)
    return answer


def _compatible(when: Conditions, assumed: Assumed) -> bool:
    facts = assumed.facts
    new = when - facts
    for key, truth in new:
        known = assumed.get(key)
        if known is not None and known != truth:
            return False
    if not new and not (CLAUSES in assumed and any(isinstance(key, AnyOf) for key, _ in when)):
        return True
    return _possible(facts | new)


@lru_cache(maxsize=8192)
def _possible(conditions: Conditions) -> bool:
    """Whether all these conditions can hold at once."""
    if len(conditions) < 2:
        return True
    about: dict[Key, list[Condition]] = {}
    clauses: list[AnyOf] = []
    for item in conditions:
        key, truth = item
        if isinstance(key, AnyOf):
            clauses.append(key)
        elif truth and (key, False) in conditions:
            return False
        else:
            about.setdefault(subject_of(key), []).append(item)
    for subject, answers in about.items():
        numeric = type(subject) is tuple and subject[0] == LENGTH[0]
        if numeric and (whole := length_subject(subject)) in about:  # an empty container is false
            answers = [*answers, *((subject, it) for key, it in about[whole] if key == whole)]
        if len(answers) > 1 and not some_value(subject, answers):
            return False
    if not clauses:
        return True
    weighed = frozenset().union(*map(_related_subjects, clauses))
    rest = frozenset(it for subject in weighed & about.keys() for it in about[subject])
    if len(clauses) == 1:
        return any(_possible(rest | group) for group in clauses[0])
    left: dict[AnyOf, list[Conditions]] = {}
    for clause in clauses:
        own = frozenset(
            it for subject in _related_subjects(clause) & about.keys() for it in about[subject]
        )
        left[clause] = [group for group in clause if _possible(own | group)]
        if not left[clause]:
            return False
    bound = [it for it in clauses if any(it.shares(other) for other in clauses if other is not it)]
    if not bound:
        return True
    clause = min(bound, key=lambda it: len(left[it]))
    others = frozenset((it, True) for it in bound if it is not clause)
    return any(_possible(rest | group | others) for group in left[clause])


def assume(assumed: Assumed, when: Iterable[Condition]) -> None:
    """Add `when` to the assumptions."""
    clauses: set[AnyOf] = set()
    for key, truth in when:
        if isinstance(key, AnyOf):
            clauses.add(key)
            continue
        assumed[key] = truth
        if truth and isinstance(key, tuple) and len(key) == 3 and key[0] == "eq":
            assumed["value", key[1]] = key[2]
    if clauses:
        together = assumed.clauses | clauses
        if len(together) <= MAX_GROUPS:
            assumed[CLAUSES] = together


def lasting_conditions(assumed: Assumed, before: Assumed) -> list[Condition]:
    """New conditions on arguments, options or the GPU, which don't change during a run."""
    if assumed == before:
        return []
    return [item for item in assumed.facts - before.facts if _lasts(item[0])]


def _lasts(key: Key) -> bool:
    if isinstance(key, AnyOf):
        return all(_lasts(subject) for subject in key.subjects)
    about = subject_of(key)
    while isinstance(about, tuple) and about and about[0] == "attr":
        about = about[1]
    return key == GPU_PRESENT or (isinstance(about, tuple) and about[:1] in _FIXED_PREFIXES)


def common_assumptions(one: Assumed, other: Assumed) -> Assumed:
    """The assumptions that both paths share."""
    both = {key: value for key, value in one.items() if key in other and other[key] == value}
    if clauses := one.clauses & other.clauses:
        both[CLAUSES] = clauses
    return Assumed(both)


def consistent(first: Iterable[Condition], *others: Iterable[Condition]) -> bool:
    """Whether all conditions of all groups can hold at once."""
    whole = frozenset(first)  # no copy of a frozenset, and its hash is kept
    return _possible(whole.union(*others) if others else whole)


def alternatives(first: Iterable[Condition], second: Iterable[Condition]) -> bool:
    """Whether these may be two settings of which a user gives only one.

    They ask for different options of one object: `args.only_gpu` and `args.mix`. The code that is
    read doesn't say whether both can be given.
    """
    ones, others = _options(first), _options(second)
    return any(ones[home].isdisjoint(others[home]) for home in ones.keys() & others.keys())


def _options(when: Iterable[Condition]) -> dict[Hashable, set[str]]:
    """Names of the options that have to be set, by the object that has them."""
    found: dict[Hashable, set[str]] = {}
    for key, truth in when:
        if truth and isinstance(key, tuple) and len(key) == 3 and subject_of(key) is key:
            home, name = key[:2], key[2]
            if isinstance(name, str):
                found.setdefault(home, set()).add(name)
    return found
