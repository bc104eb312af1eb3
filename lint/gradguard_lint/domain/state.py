"""The state of a run: what names, attributes and containers hold, and the past of this path.

Each branch gets a copy; at a join the copies are merged, and what only one branch stored is kept
under its conditions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from gradguard_lint.domain.conditions import (
    NONE,
    Assumed,
    Conditions,
    any_of,
    assume,
    common_assumptions,
    plain,
)
from gradguard_lint.domain.effects import Effect, Modes, ParallelCall, Progress, Waited
from gradguard_lint.domain.shapes import as_uncertain
from gradguard_lint.domain.values import Choice, Unknown, Value, guarded, join, joined
from pytest_gradguard.records import field, fields

Place = tuple[int, str]
"""The identity of a scope, object or container, and the name in it."""

Event = Effect | ParallelCall | Waited | Progress
Past = dict[Event, Conditions]
"""Earlier events on this path, with the conditions of each."""


MOST_OF_ITS_OWN = 128
"""Above this size, a store shares its own values with its copies."""


class Mark:
    """A point in the history of a store and its later copies.

    Attributes:
        places: the places written between the previous mark and this one.
        below: the previous mark.
        depth: the number of previous marks.
    """

    __slots__ = ("below", "depth", "places")

    def __init__(self, places: set[Place], below: Mark | None) -> None:
        self.places = places
        self.below = below
        self.depth: int = 0 if below is None else below.depth + 1


class Store:
    """Values by place, with the history of writes.

    Copies share what they have in common, and own later writes.
    """

    __slots__ = ("_own", "_shared", "below", "changed")

    def __init__(self) -> None:
        self._own: dict[Place, Value | None] = {}
        """Values written since the last copy; None: dropped."""
        self._shared: dict[Place, Value] = {}
        """Values shared with copies; never modified."""
        self.changed: set[Place] = set()
        self.below: Mark | None = None

    def get(self, place: Place) -> Value | None:
        own = self._own
        return own[place] if place in own else self._shared.get(place)

    def __contains__(self, place: Place) -> bool:
        return self.get(place) is not None

    def __setitem__(self, place: Place, value: Value) -> None:
        self.changed.add(place)
        self._own[place] = value

    def held(self) -> dict[Place, Value]:
        """All places with their values, in the order of the first write."""
        both: dict[Place, Value] = {**self._shared, **self._own}  # type: ignore[dict-item]
        for place in [place for place, value in self._own.items() if value is None]:
            del both[place]
        return both

    def drop(self, place: Place) -> None:
        if place in self:
            self.changed.add(place)
            self._own[place] = None

    def forget(self, place: Place) -> None:
        """Drop a place that nothing outside knows."""
        if place in self._shared:
            self._own[place] = None
        else:
            self._own.pop(place, None)
        self.changed.discard(place)

    def copy(self) -> Store:
        """An independent copy."""
        new = self.copy_without_history()
        new.below = self.mark()
        return new

    def copy_without_history(self) -> Store:
        """A copy without history."""
        if len(self._own) > MOST_OF_ITS_OWN:
            self._shared, self._own = self.held(), {}
        new = Store()
        new._shared, new._own = self._shared, self._own.copy()
        return new

    def mark(self) -> Mark | None:
        """Begin a new mark; later writes are found by `since` it."""
        if self.changed:
            self.below = Mark(self.changed, self.below)
            self.changed = set()
        return self.below

    def since(self, mark: Mark | None) -> set[Place]:
        """Places that were written after `mark`, and perhaps forgotten."""
        places = set(self.changed)
        below = self.below
        while below is not None and below is not mark:
            places |= below.places
            below = below.below
        return places


def differing_places(first: Store, second: Store) -> tuple[set[Place], Mark | None]:
    """Places that may differ between two stores, and their last common mark."""
    places = first.changed | second.changed
    one, other = first.below, second.below
    while one is not other:
        if other is None or (one is not None and one.depth > other.depth):
            assert one is not None
            places |= one.places
            one = one.below
        else:
            places |= other.places
            other = other.below
    return places, one


@fields
class State:
    """The state at a point of the program; `dead`: unreachable."""

    store: Store = field(default_factory=Store)
    assumed: Assumed = field(default_factory=Assumed)
    past: Past = field(default_factory=dict)
    modes: Modes = field(default_factory=Modes)
    dead: bool = False

    def copy(self) -> State:
        return State(self.store.copy(), self.assumed.copy(), dict(self.past), self.modes, self.dead)


@fields
class Moment:
    """The state in which workers start: past events, and modes."""

    past: Past
    modes: Modes


Error = type[BaseException] | None
"""A built-in exception; None if it is another one, or unknown."""

Raised = tuple[Error, State]
"""The exception, and the state in which it is raised."""


def join_states(states: Iterable[State]) -> State | None:
    """The joined state of these paths; None if all of them are dead."""
    result: State | None = None
    for state in states:
        if not state.dead:
            result = state if result is None else _joined(result, state)
    return result


def _joined(first: State, second: State) -> State:
    if first is second:
        return first
    assumed, sides = first.assumed.copy(), (NONE, NONE)
    if assumed != second.assumed:
        left, right = first.assumed.facts, second.assumed.facts
        sides = (left - right, right - left)
        assumed = common_assumptions(assumed, second.assumed)
        if all(sides) and not (len(sides[0]) == len(sides[1]) == 1):
            assume(assumed, any_of(map(plain, sides)))
    past = join_pasts(first.past, second.past)
    modes = first.modes if first.modes == second.modes else first.modes.joined_with(second.modes)
    return State(_joined_stores(first.store, second.store, sides), assumed, past, modes)


def join_pasts(first: Past, second: Past) -> Past:
    """The events of either path."""
    past = dict(first)
    if past != second:
        for event, when in second.items():
            known = past.get(event)
            if known is not when:
                past[event] = when if known is None else known & when
    return past


def _joined_stores(first: Store, second: Store, sides: tuple[Conditions, Conditions]) -> Store:
    merged = second.copy_without_history()
    merged.changed, merged.below = differing_places(first, second)
    own, shared = first._own, first._shared
    there, shared_there = second._own, second._shared
    put = merged._own  # all of them count as changed
    for place in merged.changed:  # a hot loop: many places, of which few differ
        one = own[place] if place in own else shared.get(place)
        other = there[place] if place in there else shared_there.get(place)
        if one is other:
            continue
        if one is None and other is not None:
            if sides[1]:
                put[place] = guarded(other, sides[1])
        elif other is None and one is not None:
            put[place] = guarded(one, sides[0])
        elif one is not None and other is not None and one != other:
            put[place] = _joined_values(one, other, sides)
    return merged


def _joined_values(first: Value, second: Value, sides: tuple[Conditions, Conditions]) -> Value:
    ones, others = _possible(first, sides[0]), _possible(second, sides[1])
    choices: list[Choice] = []
    for own, there, here in ((ones, others, sides[0]), (others, ones, sides[1])):
        if not here:
            choices += own
            continue
        known = {choice.atom: choice.when for choice in there}
        for choice in own:
            same = known.get(choice.atom) == choice.when
            choices.append(choice if same else Choice(choice.atom, choice.when | here))
    return joined(choices) if choices else join((first, second))


def _possible(value: Value, here: Conditions) -> Sequence[Choice]:
    """Alternatives of `value` that are possible if `here` holds."""
    if not here:
        return value.choices
    impossible = {(key, not truth) for key, truth in here}
    return [choice for choice in value.choices if not choice.when & impossible]


def widen(before: Store, after: Store) -> bool:
    """Add an unknown alternative to what still differs from `before`; whether anything did."""
    found = False
    for place in differing_places(before, after)[0]:
        old, new = before.get(place), after.get(place)
        if old is None or new is None or old is new or set(new.atoms) <= set(old.atoms):
            continue
        found = True
        after[place] = join((old, new, Value((Choice(Unknown()),))))
    return found


def loosen(store: Store, others: Iterable[Store]) -> None:
    """Add an unknown alternative to what has other alternatives in one of `others`."""
    last: dict[Place, Value] = {}  # most stores have the same value, and there are many
    for other in others:
        for place in differing_places(store, other)[0]:
            there = other.get(place)
            if there is None or last.get(place) is there:
                continue
            last[place] = there
            own = store.get(place)
            if own is there or own is None or _ANYTHING in own.choices:
                continue
            if not set(there.atoms) <= set(own.atoms):
                store[place] = Value((*own.choices, _ANYTHING))


_ANYTHING = Choice(Unknown())


def mark_uncertain(store: Store, mark: Mark | None) -> None:
    """Mark tensors stored after `mark` as uncertain: that code may be skipped."""
    for place in store.since(mark):
        value = store.get(place)
        known = value and as_uncertain(value)
        if known is not None and known is not value:
            store[place] = known


@fields
class Exits:
    """The exits of a loop iteration, with the state of each."""

    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)


@fields
class Outcomes:
    """The exits of a frame: its returns, and those of its loops."""

    returns: list[tuple[Value, ast.AST, State]] = field(default_factory=list)
    loops: list[Exits] = field(default_factory=list)
