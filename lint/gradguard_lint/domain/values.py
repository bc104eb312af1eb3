"""Abstract values: what an expression may be, with the conditions under which it is so.

A `Value` holds a few alternatives (`Choice`), each an *atom* with the conditions that it was made
under. What is not known is `Unknown`, and rules are silent about it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache

from gradguard_lint.domain.atoms import Atom, Const, Tensor, Thing, Unknown
from gradguard_lint.domain.conditions import NONE, Conditions, any_of
from gradguard_lint.domain.questions import Key
from pytest_gradguard.records import Record, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeVar

WIDTH = 16
"""How many alternatives a value keeps: with more of them it may be anything."""

PRIMITIVES = "gradguard_lint.models.primitives."
"""Where the full names of the primitives begin that stubs call."""

WAYS = 4
"""How many ways to come by one alternative are told apart."""


@record
class Choice(Record):
    """One alternative and the assumptions that it was made under."""

    atom: Atom
    when: Conditions = NONE


if TYPE_CHECKING:
    A = TypeVar("A", bound=Atom)


@record
class Value(Record):
    """What an expression may be."""

    choices: tuple[Choice, ...]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        choices = self.choices
        if len(choices) == 1:
            return (choices[0].atom,)
        return tuple([choice.atom for choice in choices])

    def of(self, kind: type[A]) -> Iterator[A]:
        """The alternatives of one kind."""
        for choice in self.choices:
            if isinstance(choice.atom, kind):
                yield choice.atom

    def tensors(self) -> Iterator[Tensor]:
        return self.of(Tensor)

    def things(self, *kinds: str) -> Iterator[Thing]:
        for thing in self.of(Thing):
            if thing.kind in kinds:
                yield thing

    def constants(self) -> list[Hashable]:
        return [atom.value for atom in self.of(Const)]

    @property
    def only(self) -> Atom | None:
        """The atom, where there is just one alternative."""
        first = self.choices[0].atom
        for choice in self.choices[1:]:
            if choice.atom != first:
                return None
        return first

    @property
    def constant(self) -> Hashable:
        """The constant, where it is the only alternative (None otherwise)."""
        only = self.only
        return only.value if isinstance(only, Const) else None

    @property
    def is_unknown(self) -> bool:
        choices = self.choices
        if len(choices) == 1:
            return isinstance(choices[0].atom, Unknown)
        return all(isinstance(choice.atom, Unknown) for choice in choices)

    @property
    def is_nameless(self) -> bool:
        """Whether it is a single unknown value without a key."""
        only = self.choices[0].atom if len(self.choices) == 1 else None
        return isinstance(only, Unknown) and only.is_nameless

    @property
    def is_none(self) -> bool:
        """Whether this is None and nothing else."""
        return all(
            isinstance(choice.atom, Const) and choice.atom.value is None for choice in self.choices
        )

    def map(self, change: Callable[[Atom], Value]) -> Value:
        """`change` applied to every alternative, each keeping its assumptions."""
        choices = self.choices
        if len(choices) == 1:
            return guarded(change(choices[0].atom), choices[0].when)
        return join([guarded(change(choice.atom), choice.when) for choice in choices])


def guarded(value: Value, when: Conditions) -> Value:
    """`value` under further assumptions."""
    if not when:
        return value
    choices = [Choice(it.atom, it.when | when if it.when else when) for it in value.choices]
    return Value(tuple(choices))


def either(ways: Sequence[tuple[Value, Conditions]]) -> Value:
    """What there is after one of these `ways`: where it is the same after all, it does not matter
    which was taken."""
    if len(ways) > 1 and len({atom for value, _ in ways for atom in value.atoms}) == 1:
        return join(value for value, _ in ways)
    return join(guarded(value, when) for value, when in ways)


def of(atom: Atom) -> Value:
    return Value((Choice(atom),))


def constant(value: Hashable) -> Value:
    return _plain(value) if type(value) in _PLAIN else of(Const(value, type(value).__name__))


_PLAIN = frozenset({str, bool, int, type(None)})


@lru_cache(maxsize=4096, typed=True)
def _plain(value: Hashable) -> Value:
    """The constant, which is the same object each time: most are made again and again."""
    return of(Const(value, type(value).__name__))


def is_number(atom: Atom) -> bool:
    """Whether `atom` is certainly a plain number that is not known."""
    if isinstance(atom, Unknown):
        return isinstance(atom.key, tuple) and atom.key[0] in NUMERIC
    return isinstance(atom, Thing) and atom.kind == "number"


NUMERIC = ("int", "number", "world-size")
"""How the keys of numbers that are not known begin."""

RANK = ("int", "rank")
"""The key of the number of a process."""

NUMBER = of(Thing("number", "number"))
"""A plain number."""

COUNT = of(Thing("number", "count"))
"""How many there are of something."""

NUMBERS = of(Thing("number", "numbers"))
"""A list of them."""

OUTPUT = -2
"""The ident of a tensor that is the output of a model."""

GRADIENT = -404
"""The ident of a tensor that is a gradient itself."""

GRADIENTS = -405
"""The ident of a tensor that is several gradients, joined."""

FIGURE = -3
"""The source of a tensor that is one number computed from gradients, such as their norm."""

ANYTHING = -5
"""The source of a tensor that is computed from something of which nothing is known."""

COPIED = -6
"""The source of a tensor that has the values of its other sources, each or some of them."""

MARKS = frozenset({OUTPUT, GRADIENT, FIGURE})
"""The sources that stay where a tensor is taken out of its graph."""

METHOD = "method"
"""The part of a thing in a class which says that it is bound as functions are."""

UNKNOWN = of(Unknown())
NOTHING = constant(None)


def unknown(key: Key) -> Value:
    return of(Unknown(key))


ONE = "one"
"""The key of something of which nothing is known but that it stays what it is begins so."""


def join(values: Iterable[Value]) -> Value:
    """All alternatives of all `values`, without repetition.

    With more than `WIDTH` of them the constants become one unknown, and with more than that the
    whole is unknown: what is dropped never makes the rest certain.
    """
    parts = tuple(values)
    if len(parts) == 1 and len(parts[0].choices) == 1:
        return parts[0]
    return joined([choice for value in parts for choice in value.choices])


def joined(choices: Sequence[Choice]) -> Value:
    """The same of alternatives."""
    if len(choices) == 1:
        return Value((choices[0],))
    unknown = [it.atom for it in choices if type(it.atom) is Unknown]
    if len(unknown) > 1:
        choices = _without_identities(choices, unknown)
    if 1 < len(choices) <= WIDTH and len({choice.atom for choice in choices}) == len(choices):
        return Value(tuple(choices))  # most often, no alternative is repeated
    seen: dict[Atom, list[Choice]] = {}
    for choice in choices:
        known = seen.get(choice.atom)
        if known is None:
            seen[choice.atom] = [choice]
            continue
        # Each way to come by it is kept, unless a weaker condition covers it.
        new = choice.when
        for it in known:
            if it.when <= new:
                break
        else:
            atom = known[0].atom
            known[:] = [it for it in known if not new <= it.when]
            known.append(choice if choice.atom is atom else Choice(atom, new))
    if not seen:
        return UNKNOWN
    if len(seen) > WIDTH:
        seen = {atom: ways for atom, ways in seen.items() if not isinstance(atom, Const)}
        seen[Unknown()] = [Choice(Unknown())]
        if len(seen) > WIDTH:
            return UNKNOWN
    found: list[Choice] = []
    for atom, ways in seen.items():
        found += ways if len(ways) <= WAYS else [Choice(atom, any_of(it.when for it in ways))]
    return Value(tuple(found))


def _without_identities(choices: Sequence[Choice], unknown: Iterable[Unknown]) -> Sequence[Choice]:
    """`choices` in which what has one key, or none, is one thing, of no identity unless all of it
    has the same; `unknown` are those among them."""
    identities: dict[tuple[Key, Key], set[Key]] = {}
    for atom in unknown:
        identities.setdefault((atom.key, atom.sent), set()).add(atom.identity)
    if all(len(it) == 1 for it in identities.values()):
        return choices
    found = []
    for choice in choices:
        it = choice.atom
        if isinstance(it, Unknown) and len(identities[it.key, it.sent]) > 1:
            found.append(Choice(Unknown(it.key, it.sent), choice.when))
        else:
            found.append(choice)
    return found
