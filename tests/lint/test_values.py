"""Joining values and states: the laws that every analysis on them stands on."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from gradguard_lint.domain import state
from gradguard_lint.domain.conditions import Assumed, assume, compatible, consistent
from gradguard_lint.domain.shapes import items
from gradguard_lint.domain.state import State, Store, differing_places, join_states
from gradguard_lint.domain.values import (
    WIDTH,
    Choice,
    Const,
    Tensor,
    Unknown,
    Value,
    constant,
    join,
)

# How fast this machine is today proves nothing.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

keys = some.sampled_from([("eq", "n", 1), ("eq", "n", 2), ("lt", "n", 2), ("flag",)])
conditions = some.frozensets(some.tuples(keys, some.booleans()), max_size=3)
atoms = some.one_of(
    some.integers(0, 40).map(lambda number: Const(number, "int")),
    some.sampled_from(["leaf", "history", "none"]).map(lambda grad: Tensor("torch", grad)),
    some.just(Unknown()),
    some.integers(0, 3).map(lambda number: items("list", [constant(number)]).choices[0].atom),
)
values = some.lists(some.builds(Choice, atoms, conditions), min_size=1, max_size=12).map(
    lambda choices: Value(tuple(choices))
)


def possible(value: Value) -> set[object]:
    return set(value.atoms)


def open_(value: Value) -> bool:
    return any(isinstance(atom, Unknown) for atom in value.atoms)


@given(values, values)
def test_join_commutes(first, second):
    assert possible(join((first, second))) == possible(join((second, first)))


@given(values)
def test_join_with_itself_adds_nothing(value):
    once = join((value,))
    assert possible(join((once, once))) == possible(once)


@given(values, values)
def test_join_loses_nothing_unless_it_says_that_anything_may_be(first, second):
    joined = join((first, second))
    assert open_(joined) or possible(first) | possible(second) <= possible(joined)


@given(some.lists(values, min_size=1, max_size=6))
def test_too_many_alternatives_are_unknown(several):
    joined = join(several)
    assert len(possible(joined)) <= WIDTH + 1
    together = set().union(*map(possible, several))
    if len(together) > WIDTH:
        assert open_(joined)


@given(values, values)
def test_conditions_are_only_ever_weakened(first, second):
    joined = join((first, second))
    for choice in (*first.choices, *second.choices):
        ways = [other.when for other in joined.choices if other.atom == choice.atom]
        assert open_(joined) or any(when <= choice.when for when in ways)


@given(conditions, conditions)
def test_whether_conditions_meet_does_not_depend_on_their_order(first, second):
    assert consistent(first, second) == consistent(second, first)


@given(some.integers(-3, 3), some.lists(some.integers(-2, 2), max_size=4))
def test_what_is_true_of_a_number_is_consistent(number, others):
    said = {(("eq", "n", other), number == other) for other in others}
    said |= {(("lt", "n", other), number < other) for other in others}
    said |= {(("le", "n", other), number <= other) for other in others}
    assert consistent(said)


@given(values, values, some.booleans())
def test_a_state_keeps_what_each_way_says(first, second, truth):
    one, other = (State(assumed=Assumed({"flag": it})) for it in (truth, not truth))
    one.store[1, "x"], other.store[1, "x"] = join((first,)), join((second,))
    joined = join_states([one, other])
    assert joined is not None
    found, *parts = (it.store.get((1, "x")) for it in (joined, one, other))
    for value in parts:
        for choice in value.choices:
            assert (
                open_(found)
                or consistent(choice.when, {("flag", truth)}) is False
                or (
                    choice.atom in possible(found)
                    or not consistent(choice.when, {("flag", not truth)})
                )
            )


@pytest.mark.parametrize("shared", [0, 2, 64])
@pytest.mark.parametrize("seed", range(40))
def test_stores_are_independent_whatever_they_share(seed, shared, monkeypatch):
    """Stores against plain dictionaries: writing, dropping, copying and what was written since."""
    monkeypatch.setattr(state, "MOST_OF_ITS_OWN", shared)
    random = Random(seed)
    places = [(1, name) for name in "abcdef"]
    marked, moments = Store(), []
    stores = [(marked, {})]
    for _ in range(120):
        store, model = random.choice(stores)
        place = random.choice(places)
        action = random.choice(["write", "write", "write", "drop", "copy", "mark"])
        if action == "write":
            store[place] = model[place] = constant(random.randrange(5))
        elif action == "drop":
            store.drop(place)
            model.pop(place, None)
        elif action == "copy":
            stores.append((store.copy(), dict(model)))
        elif store is marked:
            moments.append((store.mark(), dict(model)))
        for other, known in stores:
            assert {it: other.get(it) for it in places} == {it: known.get(it) for it in places}
            assert dict(other.held()) == known
            assert all((it in other) == (it in known) for it in places)
        for mark, known in moments:
            now = dict(marked.held())
            changed = {it for it in places if now.get(it) != known.get(it)}
            assert changed <= marked.since(mark)
        for (one, first), (other, second) in combinations(stores[-4:], 2):
            differ = {it for it in places if first.get(it) != second.get(it)}
            assert differ <= differing_places(one, other)[0]


def test_a_forgotten_place_is_written_by_nobody():
    store = Store()
    store[1, "a"] = constant(1)
    mark = store.mark()
    store[1, "b"] = constant(2)
    store.forget((1, "b"))
    assert store.since(mark) == set()
    assert store.get((1, "b")) is None
    assert store.copy().get((1, "a")) == constant(1)


def test_what_one_forgets_others_still_have(monkeypatch):
    monkeypatch.setattr(state, "MOST_OF_ITS_OWN", 0)
    store = Store()
    store[1, "a"] = constant(1)
    other = store.copy()
    store.forget((1, "a"))
    assert store.get((1, "a")) is None
    assert other.get((1, "a")) == constant(1)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_assumed_answers_as_if_it_were_asked_for_the_first_time(seed):
    random = Random(seed)
    questions = ["x", ("eq", "x", 1), ("eq", "x", 2), ("lt", "x", 1), "y"]
    known = [Assumed()]
    for _ in range(60):
        assumed = random.choice(known)
        question = random.choice(questions)
        action = random.choice(["assume", "assume", "delete", "copy"])
        if action == "assume":
            assume(assumed, {(question, random.random() < 0.5)})
        elif action == "copy":
            known.append(assumed.copy())
        elif question in assumed:
            del assumed[question]
        for one in known:
            fresh = Assumed(dict(one))
            assert one.facts == fresh.facts
            for key in questions:
                for truth in (True, False):
                    when = frozenset({(key, truth)})
                    assert compatible(when, one) == compatible(when, fresh)


def test_a_way_that_ends_says_nothing():
    dead = State(dead=True)
    assert join_states([dead]) is None
    alive = State()
    assert join_states([dead, alive]) is alive
