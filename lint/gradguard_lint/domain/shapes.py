"""The inside of values: sequences, dicts, and everything that containers hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Set
from operator import is_

from gradguard_lint.domain.conditions import Conditions
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Bound,
    Choice,
    Const,
    External,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    Parts,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
)
from pytest_gradguard.records import replace

ABSENT = of(Unknown(("absent",)))
"""The `rest` of a dict that certainly has no other keys."""


def rest_of(table: Table) -> Value:
    """The value of a key that isn't among the known ones."""
    return UNKNOWN if table.rest == ABSENT else table.rest


def name_of(atom: Atom) -> str | None:
    """What a report calls the function `atom`."""
    if isinstance(atom, Bound):
        return name_of(atom.function)
    if isinstance(atom, Function) and atom.wraps is not None:
        return atom.wraps.name
    if isinstance(atom, Function) and atom.module.is_stub and atom.owner is None:
        return f"{atom.module.name}.{atom.name}"
    if isinstance(atom, (Function, Method, External, Thing)):
        return atom.name
    if isinstance(atom, Instance):
        return f"{atom.cls.name}.__call__"
    if isinstance(atom, Partial):
        return next(filter(None, map(name_of, atom.function.atoms)), None)
    return None


def result_call(atom: Atom) -> int | None:
    """The process call that returned an unknown value, or its container."""
    key = atom.key if isinstance(atom, Unknown) else None
    while isinstance(key, tuple) and len(key) > 1:
        if key[0] == "result":
            return int(str(key[1]))
        if key[0] not in ("attr", "call", "item"):
            return None
        key = key[1]
    return None


def items(kind: str, values: Iterable[Value]) -> Value:
    """A sequence of known items."""
    known = tuple(values)
    return of(Items(kind, known, join(known) if known else UNKNOWN))


def sequence(element: Value, kind: str = "list") -> Value:
    """A sequence of any length."""
    return of(Items(kind, None, element))


def known_items(value: Value) -> tuple[Value, ...] | None:
    """The items of `value` in iteration order, if they are known."""
    only = value.only
    if isinstance(only, Items):
        return only.items
    if isinstance(only, Table) and closed(only):
        return tuple(key_value(key) for key, _ in only.entries)
    return None


def item_parts(atom: Items) -> Parts:
    """The first items, the join of those between, and the last items of `atom`."""
    if atom.items is not None:
        return atom.items, None, ()
    return atom.ends or ((), atom.element, ())


def parts_of(value: Value, element: Value) -> Parts:
    """As `item_parts`, for any value whose items are `element`."""
    known, only = known_items(value), value.only
    if known is None:
        return item_parts(only) if isinstance(only, Items) else ((), element, ())
    return known, None, ()


def concatenated(atom: Items, *parts: Parts) -> Items:
    """`atom` with the concatenation of `parts` as its items."""
    head: tuple[Value, ...] = ()
    tail: tuple[Value, ...] = ()
    middle: Value | None = None
    for first, between, last in parts:
        if middle is None:
            head, middle, tail = head + first, between, last
        elif between is None:
            tail += first
        else:
            middle, tail = join((middle, *tail, *first, between)), last
    if len(head) + len(tail) > MANY:
        head, middle, tail = (), join((*head, *((middle,) if middle else ()), *tail)), ()
    if middle is None:
        element = join(head) if head else UNKNOWN
        return replace(atom, items=head, element=element, ends=None, count=None)
    element = join((*head, middle, *tail))
    ends = (head, middle, tail) if (head or tail) and atom.kind != "set" else None
    return replace(atom, items=None, element=element, ends=ends, count=None)


def item_at(atom: Items, place: int) -> Value | None:
    """The item at `place`, if its position is known."""
    head, middle, tail = item_parts(atom)
    known = head if place >= 0 or middle is None else tail
    return known[place] if -len(known) <= place < len(known) else None


def sliced(atom: Items, cut: slice) -> Items:
    """``atom[cut]``, as a new sequence."""
    new = replace(atom, ident=0, count=None)
    head, middle, tail = item_parts(atom)
    start, stop = cut.start or 0, cut.stop
    if middle is None:
        return concatenated(new, (head[cut], None, ()))
    if cut.step not in (None, 1):
        return replace(new, ends=None)
    if start < 0:
        inside = -start <= len(tail) and (stop is None or stop < 0)
        return (
            concatenated(new, (tail[start:stop], None, ())) if inside else replace(new, ends=None)
        )
    if stop is not None and 0 <= stop <= len(head):
        return concatenated(new, (head[start:stop], None, ()))
    if stop is not None and -stop > len(tail):  # which of the first are cut is unknown
        return concatenated(new, ((), join((*head[start:], middle)), ()))
    right = tail[:stop] if stop is None or stop < 0 else tail
    if start > len(head) or (stop is not None and stop >= 0):  # the cut is within unknown positions
        return concatenated(new, (head[start:], join((middle, *right)), ()))
    return concatenated(new, (head[start:], middle, right))


def lower_bound(key: Key) -> int | None:
    """The lower bound of an unknown number with this key, if it counts up."""
    is_counter = isinstance(key, tuple) and len(key) == 3 and key[0] == "int"
    return key[2] if is_counter and isinstance(key[2], int) else None  # type: ignore[index]


def split_around(atom: Items, place: int) -> tuple[Parts, Parts]:
    """The items before and after the item at `place`."""
    after = sliced(atom, slice(place + 1, None)) if place != -1 else replace(atom, items=())
    return item_parts(sliced(atom, slice(0, place))), item_parts(after)


MANY = 32
"""The most items whose positions are tracked."""


def items_by_position(value: Value) -> list[Value] | None:
    """The items of `value` by position, if all alternatives have equally many."""
    first = value.choices[0].atom
    count = len(first.items) if isinstance(first, Items) and first.items is not None else 0
    rows = [known_items(of(atom)) for atom in value.atoms if isinstance(atom, Items)]
    if len(rows) < len(value.choices) or any(row is None or len(row) != count for row in rows):
        return None

    def at(index: int) -> Callable[[Atom], Value]:
        return lambda atom: (known_items(of(atom)) or ())[index]

    return [value.map(at(index)) for index in range(count)]


def item_at_unknown_position(element: Value) -> Value:
    """An item at an unknown position; unknown if only some items have gradients."""
    atoms = element.atoms
    if len(atoms) > 1 and any(isinstance(atom, Tensor) for atom in atoms):
        kinds = {
            (atom.tracked, bool(atom.severed)) if isinstance(atom, Tensor) else None
            for atom in atoms
        }
        if len(kinds) > 1:
            return UNKNOWN
    return element


class Packed(tuple[Hashable, ...]):
    """A key of a dict that is a tuple of constants."""

    __slots__ = ()


def as_key(value: Value) -> Value:
    """`value` as a key of a dict: a tuple of constants becomes one constant."""
    only = value.only
    if isinstance(only, Items) and only.kind == "tuple" and only.items:
        parts = [as_key(item).only for item in only.items]
        if all(isinstance(part, Const) for part in parts):
            return constant(Packed(part.value for part in parts if isinstance(part, Const)))
    return value


def key_value(key: Hashable) -> Value:
    """A dict key as iteration of the dict gives it."""
    return items("tuple", map(key_value, key)) if isinstance(key, Packed) else constant(key)


def closed(table: Table) -> bool:
    """Whether a dict certainly has only the known keys."""
    return table.keys is None and table.rest == ABSENT


EMPTY = Table((), ABSENT)
"""An empty dict."""


def merged(table: Table, given: Value) -> Table:
    """`table` after ``update(given)``, with a dict or anything else."""
    dicts = [it.atom if isinstance(it.atom, Table) else _ANY_DICT for it in given.choices]
    whens = [it.when for it in given.choices]
    entries, rest, keys = dict(table.entries), table.rest, table.keys
    held = [dict(it.entries) for it in dicts]
    for name in dict.fromkeys(name for it in (table, *dicts) for name, _ in it.entries):
        old, perhaps = entries.get(name), False
        found: list[Value] = []
        for one, has, when in zip(dicts, held, whens, strict=True):
            new = has.get(name)
            if new is not None:
                found.append(guarded(new, when))
                continue
            if may_have_key(one, name):
                found.append(guarded(rest_of(one), when))
            if old is not None:
                found.append(guarded(old, when))
            perhaps = perhaps or old is None
        if perhaps:
            rest = _or(rest, join(found))
            keys = constant(name) if keys is None else join((keys, constant(name)))
        else:
            entries[name] = join(found)
    for one in dicts:
        if not closed(one):
            rest = _or(rest, rest_of(one))
            other = one.keys or UNKNOWN
            keys = other if keys is None else join((keys, other))
    some = tuple(_possible_entries(table, dicts, whens, entries).items())
    return replace(table, entries=tuple(entries.items()), rest=rest, keys=keys, perhaps=some)


def _possible_entries(
    table: Table, dicts: list[Table], whens: list[Conditions], known: Collection[Hashable]
) -> dict[Hashable, Value]:
    """Entries that exist on only some paths, after `table` was updated with one of `dicts`; if
    every path has a known result."""
    ways = (table, *dicts)
    names = dict.fromkeys(name for it in ways for name, _ in (*it.entries, *it.perhaps))
    found: dict[Hashable, Value] = {}
    for name in names:
        if name in known:
            continue
        before = _entry_or_absent(table, name)
        given = [_entry_or_absent(one, name) for one in dicts]
        if before is None or None in given:
            continue
        found[name] = join(
            guarded(fill_absent(new, before), when)
            for new, when in zip(given, whens, strict=True)
            if new is not None
        )
    return found


def _entry_or_absent(table: Table, name: Hashable) -> Value | None:
    """The entry `name`: `ABSENT` if there is none, None if that is unknown."""
    value = table.get(name)
    if value is None:
        value = dict(table.perhaps).get(name)
    return ABSENT if value is None and not may_have_key(table, name) else value


def fill_absent(value: Value, default: Value) -> Value:
    """`value`, with `ABSENT` replaced by `default`."""
    return value.map(lambda atom: default if of(atom) == ABSENT else of(atom))


_ANY_DICT = Table((), UNKNOWN, UNKNOWN)


def _or(rest: Value, other: Value) -> Value:
    return other if rest == ABSENT else join((rest, other))


def may_have_key(table: Table, name: Hashable) -> bool:
    """Whether a dict may have the key `name`, which isn't among the known ones."""
    keys = table.keys
    if keys is None:
        return table.rest != ABSENT
    return name in keys.constants() or not all(isinstance(key, Const) for key in keys.atoms)


def without_item(atom: Items | Table, index: Value) -> Items | Table | None:
    """`atom` without the item at `index`; None if its position is unknown."""
    index = as_key(index)
    if isinstance(atom, Table):
        among = index.constants()
        if len(among) == len(index.choices) > 1:  # each of these may be removed
            entries = tuple((key, UNKNOWN if key in among else it) for key, it in atom.entries)
            return replace(atom, entries=entries, perhaps=())
    if not isinstance(index.only, Const):
        return None
    place = index.constant
    if isinstance(atom, Table):
        others, some = (
            tuple(entry for entry in part if entry[0] != place)
            for part in (atom.entries, atom.perhaps)
        )
        rest, keys = atom.rest, atom.keys
        if keys is not None and all(isinstance(key, Const) for key in keys.atoms):
            kept = [choice for choice in keys.choices if choice.atom != index.only]
            rest, keys = (rest, Value(tuple(kept))) if kept else (ABSENT, None)
        return replace(atom, entries=others, rest=rest, keys=keys, perhaps=some)
    if not isinstance(place, int) or item_at(atom, place) is None:
        return None
    return concatenated(atom, *split_around(atom, place))


def contents_of(atom: Atom) -> tuple[Value, ...]:
    """The values in a container or partial."""
    if isinstance(atom, Items):
        return atom.items if atom.items is not None else (atom.element,)
    if isinstance(atom, Table):
        known = tuple(value for _, value in atom.entries)
        return known if atom.rest == ABSENT else (*known, atom.rest)
    if isinstance(atom, Partial):
        return (*atom.args, *(value for _, value in atom.keywords))
    return ()


def map_contents(atom: Items | Table, change: Callable[[Value], Value]) -> Items | Table:
    """`atom` with `change` applied to each value; itself if nothing changes."""
    held = contents_of(atom)
    new = tuple(map(change, held))
    if all(map(is_, held, new)):
        return atom
    if isinstance(atom, Table):
        entries = tuple((key, item) for (key, _), item in zip(atom.entries, new, strict=False))
        return replace(atom, entries=entries, rest=new[-1] if atom.rest != ABSENT else ABSENT)
    if atom.items is None:
        return replace(atom, element=new[0], ends=None)
    return replace(atom, items=new, element=join(new))


def inner(value: Value, depth: int = 4) -> Iterator[Atom]:
    """Every atom in `value`, also in nested containers."""
    for atom in value.atoms:
        yield atom
        if depth > 0:
            for item in contents_of(atom):
                yield from inner(item, depth - 1)


def of_a_library(atom: Atom) -> bool:
    """Whether `atom` is an instance of a library's class or of its subclass."""
    return isinstance(atom, (Tensor, Thing)) or (isinstance(atom, Instance) and bool(atom.cls.what))


def idents(value: Value) -> set[int]:
    """The identities of models and tensors in `value`."""
    found: set[int] = set()
    for atom in inner(value):
        if isinstance(atom, Thing):
            found.add(atom.ident)
            for name, part in atom.parts:
                if name == "parameters":
                    found |= idents(part)
        elif isinstance(atom, Instance):
            found.add(atom.ident)
        elif isinstance(atom, Tensor):
            found |= {atom.ident, *atom.sources}
    return {ident for ident in found if ident > 0}


def as_received(value: Value, worker: int) -> Value:
    """`value` of the parent as received by a worker process: tensors lose their history."""

    def change(atom: Atom) -> Atom:
        if isinstance(atom, Tensor) and atom.born != worker:
            grad = "leaf" if atom.grad == "history" else atom.grad
            return replace(atom, grad=grad, born=worker, sources=atom.sources | {atom.ident})
        if isinstance(atom, Thing) and atom.born != worker:
            return replace(atom, born=worker)
        return atom

    choices = tuple(Choice(change(choice.atom), choice.when) for choice in value.choices)
    return Value(choices) if choices != value.choices else value


def is_certain(value: Value) -> bool:
    """Whether `value` is one tensor on every path."""
    return all(isinstance(atom, Tensor) and atom.certain for atom in value.atoms)


def as_uncertain(value: Value) -> Value:
    """`value` with no tensor certain, also in containers."""

    def change(atom: Atom) -> Atom:
        if isinstance(atom, Tensor) and atom.certain:
            return replace(atom, certain=False)
        if isinstance(atom, Items):
            known = None if atom.items is None else tuple(map(as_uncertain, atom.items))
            ends = atom.ends
            if ends is not None:
                first, between, last = ends
                between = None if between is None else as_uncertain(between)
                ends = (tuple(map(as_uncertain, first)), between, tuple(map(as_uncertain, last)))
            return replace(atom, items=known, element=as_uncertain(atom.element), ends=ends)
        if isinstance(atom, Table):
            entries = tuple((key, as_uncertain(item)) for key, item in atom.entries)
            perhaps = tuple((key, as_uncertain(item)) for key, item in atom.perhaps)
            return replace(atom, entries=entries, rest=as_uncertain(atom.rest), perhaps=perhaps)
        return atom

    choices = tuple(Choice(change(choice.atom), choice.when) for choice in value.choices)
    return Value(choices) if choices != value.choices else value


def as_owned(value: Value, worker: int, shared: Set[int] = frozenset()) -> Value:
    """`value` as the worker's own objects, not shared between tasks, except for `shared`."""

    def change(atom: Atom) -> Atom:
        if isinstance(atom, (Thing, Tensor, Instance)) and atom.ident in shared:
            return atom
        if isinstance(atom, Thing):
            parts = tuple((name, as_owned(part, worker, shared)) for name, part in atom.parts)
            return replace(atom, born=worker, parts=parts)
        if isinstance(atom, (Tensor, Instance)):
            return replace(atom, born=worker)
        if isinstance(atom, (Bound, Method)):
            return replace(atom, receiver=change(atom.receiver))
        if isinstance(atom, Items):
            return map_contents(atom, lambda held: as_owned(held, worker, shared))
        return atom

    return Value(tuple(Choice(change(choice.atom), choice.when) for choice in value.choices))
