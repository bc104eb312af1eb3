"""Conditions against all values that there are: what can hold, and what cannot."""

from __future__ import annotations

import itertools
from functools import cache
from random import Random

import pytest

from gradguard_lint.domain.conditions import (
    NEVER,
    NONE,
    Assumed,
    any_of,
    assume,
    common_assumptions,
    compatible,
    consistent,
    forget,
)

VALUES = (None, False, "", 0, 0.5, 1, 2, 3, 4, -1, "cpu", "cuda", "cuda:1", "mps", "a")
QUESTIONS = (
    "x",
    *(("eq", "x", value) for value in (None, 0, 1, 2, "cpu", "cuda", "mps")),
    *((kind, "x", number) for kind in ("lt", "le") for number in (0, 1, 2, 3)),
    *(("among", "x", names) for names in (("cpu", "cuda"), ("cuda", "mps"), (0, 1), (2,))),
    ("contains", "x", "cuda"),
)


def answer(question, value):
    """What `question` is of `value`; None where it raises."""
    if question == "x":
        return bool(value)
    kind, _, other = question
    try:
        return {
            "eq": lambda: value == other,
            "lt": lambda: value < other,
            "le": lambda: value <= other,
            "among": lambda: value in other,
            "contains": lambda: other in value,
        }[kind]()
    except TypeError:
        return None


def some(told):
    """Whether a value has all these answers. What is weighed against 1 and 2 counts: no 1.5."""
    return any(all(answer(key, value) is truth for key, truth in told) for value in VALUES)


def drawn(random, most):
    return frozenset(
        (random.choice(QUESTIONS), random.random() < 0.5) for _ in range(random.randint(1, most))
    )


@pytest.mark.parametrize("most", [2, 3, 5])
def test_what_some_value_has_can_hold(most):
    random = Random(most)
    possible = 0
    for _ in range(4000):
        told = drawn(random, most)
        if some(told):
            possible += 1
            assert consistent(told), told
            first, *rest = told
            assert consistent((first,), rest)
            assumed = Assumed()
            assume(assumed, rest)
            assert compatible(frozenset((first,)), assumed), told
    assert possible > 300


def is_of_numbers(key):
    others = key[2] if key[0] == "among" else key[2:]
    return key == "x" or all(isinstance(other, int) for other in others)


@pytest.mark.parametrize("numbers", [True, False])
def test_two_answers_that_no_value_has_cannot_hold(numbers):
    # Whether a string is less than a number is left open.
    of_one_kind = [
        key
        for key in QUESTIONS
        if (is_of_numbers(key) if numbers else key[0] not in ("lt", "le", "contains"))
    ]
    found = 0
    for pair in itertools.combinations(of_one_kind, 2):
        for truths in itertools.product((True, False), repeat=2):
            told = frozenset(zip(pair, truths, strict=True))
            if not some(told):
                found += 1
                assert not consistent(told), told
    assert found > 20


def test_one_of_several_groups():
    random = Random(7)
    tried = 0
    for _ in range(3000):
        groups = [frozenset({*drawn(random, 2), ("y", random.random() < 0.5)}) for _ in range(3)]
        clause, told = any_of(groups), drawn(random, 2) | {("y", random.random() < 0.5)}
        truths = {
            (value, flag)
            for value in VALUES
            for flag in (True, False)
            for group in groups
            if all((flag if k == "y" else answer(k, value)) is t for k, t in group)
        }
        fits = any(
            all((flag if k == "y" else answer(k, value)) is t for k, t in told)
            for value, flag in truths
        )
        if fits:
            tried += 1
            assert consistent(clause, told), (groups, told)
    assert tried > 300


def about(key, name):
    """The question `key`, asked about the variable `name` instead of `x`."""
    return name if isinstance(key, str) else (key[0], name, key[2])


def drawn_about_two(random, most):
    """Conditions about `x` and `y`, most of which exclude each other."""
    return frozenset(
        (about(random.choice(QUESTIONS[:8]), random.choice("xy")), random.random() < 0.8)
        for _ in range(random.randint(1, most))
    )


def holding(when):
    """The pairs of values, of `x` and of `y`, under which all of `when` holds."""
    found = set(PAIRS)
    for key, truth in when:
        found &= set().union(*map(holding, key)) if asks_for_one(key) else answering(key, truth)
    return found


def asks_for_one(key):
    """Whether `key` asks for one of several groups of conditions."""
    return isinstance(key, frozenset)


@cache
def answering(key, truth):
    if key == ("never",):
        return frozenset()
    name = key if isinstance(key, str) else key[1]
    fits = [value for value in VALUES if answer(about(key, "x"), value) is truth]
    return frozenset(pair for pair in PAIRS if pair["xy".index(name)] in set(fits))


PAIRS = list(itertools.product(VALUES, VALUES))


def test_unions_of_unions():
    random = Random(11)
    impossible = 0
    for _ in range(1500):
        clauses = [
            any_of(drawn_about_two(random, 2) for _ in range(random.randint(2, 3)))
            for _ in range(3)
        ]
        worlds = [
            drawn_about_two(random, 2).union(*random.sample(clauses, random.randint(1, 2)))
            for _ in range(random.randint(1, 3))
        ]
        united = any_of(worlds)
        assert set().union(*map(holding, worlds)) <= holding(united), worlds
        assert consistent(united) is any(map(consistent, worlds)), worlds
        impossible += not consistent(united)
    assert impossible > 100


LENGTH = ("number", "len", "x")
OF_A_LIST = ("x", LENGTH, *((kind, LENGTH, n) for kind in ("eq", "lt", "le") for n in (1, 2)))


def fits(when, length, flags):
    """Whether all of `when` holds of a list `x` of that length, where these flags are set."""
    return all(
        any(fits(group, length, flags) for group in key)
        if asks_for_one(key)
        else key != ("never",)
        and (key in flags if key in FLAGS else of_a_list(key, length)) is truth
        for key, truth in when
    )


def of_a_list(key, length):
    return length > 0 if key in ("x", LENGTH) else answer((key[0], "x", key[2]), length)


FLAGS = ("a", "b")
LISTS = [
    (length, flags)
    for length in range(5)
    for count in range(len(FLAGS) + 1)
    for flags in itertools.combinations(FLAGS, count)
]


def test_unions_about_a_list_and_its_length():
    random = Random(13)

    def drawn_of_a_list():
        own = (random.choice(OF_A_LIST), random.random() < 0.6)
        return frozenset({own, (random.choice((*FLAGS, "x")), random.random() < 0.6)})

    impossible = 0
    for _ in range(2000):
        clauses = [any_of(drawn_of_a_list() for _ in range(2)) for _ in range(2)]
        worlds = [
            drawn_of_a_list().union(*random.sample(clauses, random.randint(1, 2)))
            for _ in range(random.randint(1, 3))
        ]
        united = any_of(worlds)
        holds = [it for it in LISTS if any(fits(world, *it) for world in worlds)]
        assert all(fits(united, *it) for it in holds), worlds
        assert consistent(united) is bool(holds), worlds
        impossible += not holds
    assert impossible > 100


def test_groups_that_what_is_said_of_a_list_excludes():
    either = any_of(
        [
            frozenset({(("lt", LENGTH, 1), True), ("a", True)}),
            frozenset({(("eq", LENGTH, 0), True), ("b", True)}),
        ]
    )
    filled = either | {("x", True)}
    assert not consistent(filled)
    assert any_of([filled | {("y", True)}, filled | {("z", True)}]) == NEVER
    assert any_of([filled, frozenset({("z", True)})]) == {("z", True)}


def test_one_group_that_is_left_of_several():
    all_three = frozenset({("a", True), ("b", True), ("c", True)})
    one = any_of([all_three - {("a", True)}, frozenset({("a", False), ("d", True)})])
    other = any_of([all_three - {("b", True)}, frozenset({("b", False), ("e", True)})])
    assert any_of([one | {("a", True)}, other | {("b", True)}]) == all_three


def test_no_group_that_can_hold():
    impossible = frozenset({("x", True), (("eq", "x", 0), True)})
    assert any_of([impossible, impossible]) == NEVER
    assert not consistent(NEVER)
    assert any_of([]) == NONE
    assert any_of([impossible, frozenset({("y", True)})]) == {("y", True)}
    either = any_of([frozenset({("y", True)}), frozenset({(("eq", "x", 1), True)})])
    neither = either | {("y", False), (("eq", "x", 2), True)}
    assert not consistent(neither)
    assert any_of([neither, neither | {("z", True)}]) == NEVER
    assert any_of([neither, frozenset({("z", True)})]) == {("z", True)}


def test_what_is_told_on_both_ways():
    either = any_of([frozenset({("x", True)}), frozenset({("y", True)})])
    one, other = Assumed(), Assumed()
    assume(one, either | {("z", True)})
    assume(other, either | {("z", False)})
    assert common_assumptions(one, other).facts == either


def test_what_is_forgotten_of_a_thing():
    before = Assumed()
    assume(before, {("z", True)})
    assumed = before.copy()
    assume(assumed, any_of([frozenset({("x", True)}), frozenset({("y", True)})]))
    assume(assumed, {(("eq", "x", 2), False)})
    forget(assumed, frozenset({"x"}), before)
    assert assumed.facts == {("z", True)}
