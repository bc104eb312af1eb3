"""Functions and properties with cached results, and attributes created when missing."""

from __future__ import annotations

from collections.abc import Callable

from gradguard_lint.domain.conditions import Condition, compatible
from gradguard_lint.domain.shapes import inner
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

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.engine.run_parts import CallKey

CACHED = "cached"
"""The mark of a function with cached results, as by ``functools.cache``."""

CACHED_PROPERTY = "cached-property"
"""The mark of a property that becomes an attribute when it is first read."""


def cached_call(m: Machine, function: Function, args: Args, run: Callable[[], Value]) -> Value:
    """The cached result of `function`, or that of `run`.

    Results that a worker's process has cached are ignored.
    """
    if m.place.worker is not None:
        return run()
    ident = _ident(m, function)
    known = m.facts.cached_calls.setdefault(ident, {})
    key = _key(args)
    there = [it for it, number in known.items() if _is_cached(m, ident, number) is not None]
    if key[1] is not None and key in there:
        cached = m.read(ident, _name(known[key])) or UNKNOWN
        return cached if _is_cached(m, ident, known[key]) else join((cached, UNKNOWN))
    if there and not all(is_certain for is_certain, _ in (key, *there)):
        return UNKNOWN  # it may be one of the cached results
    made = run()
    if not m.dead and not made.is_unknown:
        number = known.setdefault(key, len(known))
        m.store[ident, _name(number)] = made
        m.store[ident, _there(number)] = constant(True)
    return made


def clear_cache(m: Machine, function: Function) -> None:
    """Record that the cache of `function` is empty."""
    ident = _ident(m, function)
    for number in m.facts.cached_calls.get(ident, {}).values():
        m.store.drop((ident, _there(number)))
        m.store.drop((ident, _name(number)))


def cache_as_attribute(m: Machine, owner: Instance, name: str, made: Value) -> None:
    """Store the cached property `name` of `owner`."""
    if not m.dead and not made.is_unknown and owner.born == m.worker_ident:
        m.set_field(owner.ident, name, made)


def reset_cached_properties(m: Machine, instance: Instance) -> None:
    """Drop attributes of a new `instance` that properties or tests for them create."""
    for name in m.facts.attribute_names.get(instance.ident, ()):
        if (instance.ident, name) in m.facts.queried_attributes:
            m.store.drop((instance.ident, name))
        found = m.find_in_class(instance.cls, name)
        for function in found.of(Function) if found is not None else ():
            if CACHED_PROPERTY in function.marks:
                m.store.drop((instance.ident, name))


def has_set_attribute(m: Machine, instance: Instance, name: str) -> Value:
    """Whether `instance` has the attribute `name`; unknown if nothing has set it."""
    if m.worker_ident != instance.born:
        return UNKNOWN  # the worker's copy isn't tracked here
    missing = (("has", instance.ident, name), False)
    m.facts.queried_attributes.add((instance.ident, name))
    value = m.read(instance.ident, name)
    if value is not None:  # if a branch created the missing attribute, it exists now
        when = frozenset[Condition].intersection(*(it.when for it in value.choices))
        return constant(True) if when - {missing} <= m.assumed.facts else UNKNOWN
    if m.find_in_class(instance.cls, name) is not None:
        return constant(True)
    may_have = name in m.facts.attribute_names.get(instance.ident, ()) or not instance.cls.plain
    asks = m.find_in_class(instance.cls, "__getattr__") is not None
    return UNKNOWN if may_have or asks else unknown(missing[0])


def _ident(m: Machine, function: Function) -> int:
    return m.ident_of((CACHED, id(function.node), function.frame.ident))


def _name(number: int) -> str:
    return f"<cached {number}>"


def _there(number: int) -> str:
    return f"<cached {number} there>"


def _is_cached(m: Machine, ident: int, number: int) -> bool | None:
    """Whether a result is cached on every path that leads here; None if on no path."""
    there = m.store.get((ident, _there(number)))
    if there is None:
        return None
    alive = [choice for choice in there.choices if compatible(choice.when, m.assumed)]
    return any(not choice.when - m.assumed.facts for choice in alive) if alive else None


def _key(args: Args) -> CallKey:
    """The key of a call, and whether it certainly identifies the call."""
    values = tuple(args.values())
    if args.rest is not None or args.open or args.perhaps or not all(map(_has_equality, values)):
        return False, None
    is_certain = not any(isinstance(atom, Unknown) for value in values for atom in inner(value))
    return is_certain, (tuple(args.keywords), values)


def _has_equality(value: Value) -> bool:
    """Whether it is decidable which values equal `value`."""
    atom = value.only
    if isinstance(atom, Items):
        return (
            atom.kind == "tuple" and atom.items is not None and all(map(_has_equality, atom.items))
        )
    if isinstance(atom, Unknown):
        return atom.key is not None
    return isinstance(atom, (Const, Instance, Class, Function, External))
