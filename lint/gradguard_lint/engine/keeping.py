"""Functions that keep what they gave, and give it again where they are asked the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from gradguard_lint.domain.conditions import Condition, compatible
from gradguard_lint.domain.values import (
    UNKNOWN,
    Class,
    Const,
    External,
    Function,
    Instance,
    Items,
    Unknown,
    Value,
    constant,
    join,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args

KEPT = "kept"
"""The mark of a function that keeps what it gave."""

KEPT_AS_ATTRIBUTE = "kept-as-attribute"
"""The mark of a property that is an attribute from when it is asked for on."""

UNDECIDED = "undecided"
"""What the keys of calls begin with of which it is not known which others they equal."""


def again(m: Machine, function: Function, args: Args, run: Callable[[], Value]) -> Value:
    """What a call gives of `function`, which keeps that: `run` makes it where it was not asked for
    before. A worker has kept what its process had, which is not looked at."""
    if m.place.worker is not None:
        return run()
    ident = _ident(m, function)
    known = m.facts.cached_calls.setdefault(ident, {})
    key = _key(args)
    told = [it for it, number in known.items() if _when(m, ident, number) is not None]
    if key is not None and key in told:
        kept = m.read(ident, _name(known[key])) or UNKNOWN
        return kept if _when(m, ident, known[key]) else join((kept, UNKNOWN))
    if any(UNDECIDED in (it[0], key[0] if key else UNDECIDED) for it in told):
        return UNKNOWN  # it may be one that was made before
    made = run()
    if not m.dead and not made.is_unknown:
        number = known.setdefault(key or (UNDECIDED,), len(known))
        m.store[ident, _name(number)] = made
        m.store[ident, _there(number)] = constant(True)
    return made


def forget(m: Machine, function: Function) -> None:
    """`function` has nothing left of what it kept."""
    ident = _ident(m, function)
    for number in m.facts.cached_calls.get(ident, {}).values():
        m.store.drop((ident, _there(number)))
        m.store.drop((ident, _name(number)))


def keep_as_attribute(m: Machine, owner: Instance, name: str, made: Value) -> None:
    """`made` is what the attribute `name` of `owner` is from here on."""
    if not m.dead and not made.is_unknown and owner.born == m.worker_ident:
        m.set_field(owner.ident, name, made)


def anew(m: Machine, instance: Instance) -> None:
    """`instance` is made: it has no attribute yet of those that its properties make, or that are
    made where they are missing."""
    for name in m.facts.attribute_names.get(instance.ident, ()):
        if (instance.ident, name) in m.facts.queried_attributes:
            m.store.drop((instance.ident, name))
        found = m.find_in_class(instance.cls, name)
        for function in found.of(Function) if found is not None else ():
            if KEPT_AS_ATTRIBUTE in function.marks:
                m.store.drop((instance.ident, name))


def has(m: Machine, instance: Instance, name: str) -> Value:
    """Whether `instance` has the attribute `name`; where nobody has set it, that stays unknown."""
    if m.worker_ident != instance.born:
        return UNKNOWN  # what of it arrives is not asked here
    missing = (("has", instance.ident, name), False)
    m.facts.queried_attributes.add((instance.ident, name))
    value = m.read(instance.ident, name)
    if value is not None:  # who made it where it was missing has made it for good
        when = frozenset[Condition].intersection(*(it.when for it in value.choices))
        return constant(True) if when - {missing} <= m.assumed.facts else UNKNOWN
    if m.find_in_class(instance.cls, name) is not None:
        return constant(True)
    told = name in m.facts.attribute_names.get(instance.ident, ()) or not instance.cls.plain
    asks = m.find_in_class(instance.cls, "__getattr__") is not None
    return UNKNOWN if told or asks else unknown(missing[0])


def _ident(m: Machine, function: Function) -> int:
    return m.ident_of((KEPT, id(function.node), function.frame.ident))


def _name(number: int) -> str:
    return f"<kept {number}>"


def _there(number: int) -> str:
    return f"<kept {number} there>"


def _when(m: Machine, ident: int, number: int) -> bool | None:
    """Whether it is there on every way that leads here; None where it is on none."""
    there = m.store.get((ident, _there(number)))
    if there is None:
        return None
    alive = [choice for choice in there.choices if compatible(choice.when, m.assumed)]
    return any(not choice.when - m.assumed.facts for choice in alive) if alive else None


def _key(args: Args) -> tuple[Hashable, ...] | None:
    """What tells calls apart by what they are given; None where that is not known."""
    if args.rest is not None or args.open or args.perhaps:
        return None
    parts = [_part(value) for value in args.values()]
    if None in parts:
        return None
    undecided = any(part and part[0] == UNDECIDED for part in parts)
    return (UNDECIDED if undecided else "", tuple(args.keywords), *parts)


def _part(value: Value) -> tuple[Hashable, ...] | None:
    atom = value.only
    if isinstance(atom, Const):
        return ("", atom.value)
    if isinstance(atom, (Instance, Class, Function, External)):
        return ("", atom)
    if isinstance(atom, Items) and atom.kind == "tuple" and atom.items is not None:
        parts = tuple(_part(item) for item in atom.items)
        if None in parts:
            return None
        undecided = any(part and part[0] == UNDECIDED for part in parts)
        return (UNDECIDED if undecided else "", parts)
    if isinstance(atom, Unknown) and atom.key is not None:
        return (UNDECIDED, atom.key)
    return None
