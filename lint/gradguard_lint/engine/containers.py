"""Containers: their items, lengths and changes, as the store has them."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable

from gradguard_lint.domain.questions import LENGTH, Key
from gradguard_lint.domain.shapes import (
    ABSENT,
    as_key,
    concatenated,
    item_parts,
    items,
    key_value,
    known_items,
    map_contents,
    sequence,
    sliced,
)
from gradguard_lint.domain.state import Place
from gradguard_lint.domain.unknowns import computed
from gradguard_lint.domain.values import (
    COUNT,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    Items,
    Parts,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    is_number,
    join,
    of,
)
from gradguard_lint.engine.machine import SIZE, Machine
from gradguard_lint.engine.proofs import as_proved
from gradguard_lint.engine.variables import HEAP
from pytest_gradguard.records import replace


def of_pairs(value: Value) -> Value:
    """`value`, with sequences of pairs converted to dicts."""

    def change(atom: Atom) -> Value:
        if not isinstance(atom, Items):
            return of(atom)
        rows = [known_items(row) or () for row in atom.items or ()]
        keys = [as_key(row[0]).only if len(row) == 2 else None for row in rows]
        if atom.items is not None and all(isinstance(key, Const) for key in keys):
            entries = {
                it.value: row[1]
                for it, row in zip(keys, rows, strict=True)
                if isinstance(it, Const)
            }
            return of(Table(tuple(entries.items()), ABSENT))
        pairs = [known_items(of(it)) or () for it in atom.element.atoms]
        if any(len(pair) != 2 for pair in pairs):
            return UNKNOWN
        names, values = zip(*pairs, strict=True)
        return of(Table((), join(values), join(names)))

    return value.map(change)


def length(m: Machine, atom: Atom) -> Atom:
    """The number of items in `atom`."""
    if isinstance(atom, Items) and atom.items is not None:
        return Const(len(atom.items), "int")
    if isinstance(atom, Items) and atom.count is not None:
        return Unknown(atom.count)
    place = _place_of_length(atom)
    if place is None:
        return COUNT.choices[0].atom
    m.facts.queried_lengths.add(place)
    recorded = m.store.get(place)
    if recorded is not None:
        return recorded.only or COUNT.choices[0].atom
    if isinstance(atom, Items):
        return Unknown((*LENGTH, (atom.ident, m.place.turns.made.get(atom.ident))))
    assert isinstance(atom, Unknown)
    key = ("gpu-count",) if atom.key == ("gpu-list",) else computed("len", atom)
    return COUNT.choices[0].atom if key is None else Unknown(key)


def forget_length(m: Machine, atom: Atom) -> None:
    """Record that the length of a container may have changed."""
    place = _place_of_length(atom) if m.facts.queried_lengths else None
    if place is not None and place in m.facts.queried_lengths:
        m.store[place] = COUNT


def with_length_of(m: Machine, other: Value, value: Value) -> Value:
    """`value`, a new sequence with one item for each in `other`, with the same length."""
    made, source = value.only, other.only
    count = length(m, source) if source is not None else None
    if isinstance(made, Items) and made.items is None and isinstance(count, Unknown):
        if made.kind == "tuple":
            return of(replace(made, count=count.key))
        if made.ident:
            m.store[made.ident, SIZE] = of(count)
            m.facts.queried_lengths.add((made.ident, SIZE))
    return value


def _place_of_length(atom: Atom) -> Place | None:
    """The place of the length of `atom` in the store."""
    if isinstance(atom, Items):
        return (atom.ident, SIZE) if atom.ident else None
    return (0, str((SIZE, atom.key))) if isinstance(atom, Unknown) and atom.key else None


def item_of_unknown(m: Machine, atom: Unknown, index: Hashable) -> Value:
    """The item of an unknown container at `index`."""
    item = item_of(atom, index)
    asked = item.key is not None and index in m.facts.written_on_unknown
    fixed = m.store.get((0, str(item.key))) if asked else None
    return fixed if fixed is not None else of(item)


def item_of(atom: Unknown, *index: Hashable) -> Unknown:
    """An item of an unknown container, at `index` or any."""
    key = None if atom.key is None else ("item", atom.key, *index)
    return Unknown(key, identity=None if atom.identity is None else ("item", atom.identity, *index))


def items_changed(m: Machine, owner: Key) -> None:
    """Forget what was set on an unknown container."""
    for name in m.facts.written_on_unknown if owner is not None else ():
        place = (0, str(("item", owner, name)))
        if place in m.store:
            m.store[place] = UNKNOWN


def store_contents(m: Machine, atom: Items | Table) -> None:
    """Store `atom` as the content of the container with its identity."""
    m.store[atom.ident, HEAP] = of(atom)


def element_of(m: Machine, value: Value) -> Value:
    """An item of `value`; empty alternatives give none."""
    found = []
    for choice in value.choices:
        atom = choice.atom
        if isinstance(atom, Items):
            if atom.items != ():
                found.append(atom.element)
        elif isinstance(atom, Table):
            names = [key_value(key) for key, _ in atom.entries]
            if atom.keys is not None:
                names.append(atom.keys)
            found.append(join(names) if names else UNKNOWN)
        elif isinstance(atom, Tensor):
            part = m.models.derived(m, atom)
            found.append(of(replace(part, extent=part.extent[1:])))
        elif isinstance(atom, Const) and isinstance(atom.value, (str, type(None))):
            found.append(UNKNOWN)
        elif isinstance(atom, Thing) and is_number(atom):
            found.append(of(atom))  # an item of a list of numbers
        else:
            item = of(item_of(atom)) if isinstance(atom, Unknown) else UNKNOWN
            found.append(as_proved(m, item))
    return m.filtered(join(found)) if found else UNKNOWN


def concatenate(m: Machine, values: Iterable[Value]) -> Value | None:
    """The concatenation of lists or tuples; None if an alternative is neither."""
    held = [whole(m, value, 2) for value in values]
    found = [atom for value in held for atom in value.atoms]
    kinds = {atom.kind if isinstance(atom, Items) else "" for atom in found}
    if len(kinds) != 1 or not kinds <= {"list", "tuple"}:
        return None
    (kind,) = kinds
    full = [it for it in held if any(isinstance(a, Items) and a.items != () for a in it.atoms)]
    return sequence(join(element_of(m, it) for it in full), kind) if full else items(kind, [])


def extended(m: Machine, atom: Items, added: Parts, at: int | None = None) -> Items:
    """A sequence with `added` inserted in place at `at`, or at its end; in a loop, an unknown
    number of times."""
    if m.place.turns.depth:
        first, between, last = added
        several = (*first, *((between,) if between else ()), *last)
        added = (), join(several) if several else None, ()
    if at is None:
        longer = concatenated(atom, item_parts(atom), added)
    else:
        before, after = sliced(atom, slice(0, at)), sliced(atom, slice(at, None))
        longer = concatenated(atom, item_parts(before), added, item_parts(after))
    if atom.items is None and atom.element.is_unknown:  # keep that the added items are known
        return replace(longer, element=concatenated(atom, added).element)
    return longer


def with_identity(m: Machine, node: ast.AST, value: Value) -> Value:
    """`value` with an identity for each new mutable container."""
    for choice in value.choices:
        if _changeable(choice.atom):
            break
    else:
        return value
    choices = []
    for number, choice in enumerate(value.choices):
        atom = choice.atom
        if isinstance(atom, (Items, Table)) and _changeable(atom):
            atom = replace(atom, ident=m.ident_at(node, "held", number))
            store_contents(m, atom)
            if isinstance(atom, Items) and (atom.ident, SIZE) in m.store:
                m.store.drop((atom.ident, SIZE))
        choices.append(Choice(atom, choice.when))
    return Value(tuple(choices))


def _changeable(atom: Atom) -> bool:
    if isinstance(atom, Items):
        return not atom.ident and atom.kind in ("list", "set", "deque")
    return isinstance(atom, Table) and not atom.ident


def whole(m: Machine, value: Value, depth: int = 4) -> Value:
    """`value` with containers replaced by their current content, nested ones included."""
    value = m.filtered(value)
    if depth <= 0 or not any(isinstance(c.atom, (Items, Table)) for c in value.choices):
        return value

    def inside(atom: Atom) -> Atom:
        if isinstance(atom, (Items, Table)):
            return map_contents(atom, lambda held: whole(m, held, depth - 1))
        return atom

    return Value(tuple(Choice(inside(c.atom), c.when) for c in value.choices))
