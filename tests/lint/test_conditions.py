"""Conditions against all values that there are: what can hold, and what cannot."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from gradguard_lint.domain.conditions import (
    NEVER,
    NONE,
    Assumed,
    any_of,
    assume,
    compatible,
    consistent,
    forget,
    in_both,
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


def test_no_group_that_can_hold():
    impossible = frozenset({("x", True), (("eq", "x", 0), True)})
    assert any_of([impossible, impossible]) == NEVER
    assert not consistent(NEVER)
    assert any_of([]) == NONE
    assert any_of([impossible, frozenset({("y", True)})]) == {("y", True)}


def test_what_is_told_on_both_ways():
    either = any_of([frozenset({("x", True)}), frozenset({("y", True)})])
    one, other = Assumed(), Assumed()
    assume(one, either | {("z", True)})
    assume(other, either | {("z", False)})
    assert in_both(one, other).facts == either


def test_what_is_forgotten_of_a_thing():
    before = Assumed()
    assume(before, {("z", True)})
    assumed = before.copy()
    assume(assumed, any_of([frozenset({("x", True)}), frozenset({("y", True)})]))
    assume(assumed, {(("eq", "x", 2), False)})
    forget(assumed, frozenset({"x"}), before)
    assert assumed.facts == {("z", True)}
