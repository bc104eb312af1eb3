"""Assignments to names, attributes and items; unpacking, and deletion."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from functools import partial

from gradguard_lint.domain.shapes import (
    as_key,
    closed,
    concatenated,
    item_at,
    item_at_unknown_position,
    items,
    known_items,
    parts_of,
    sequence,
    sliced,
    split_around,
    without_item,
)
from gradguard_lint.domain.values import (
    Atom,
    Class,
    Const,
    External,
    Frame,
    Instance,
    Items,
    Partial,
    ProjectModule,
    Table,
    Thing,
    Unknown,
    Value,
    join,
    of,
)
from gradguard_lint.engine.calls import rebind
from gradguard_lint.engine.containers import (
    element_of,
    extended,
    forget_length,
    item_of,
    items_changed,
    store_contents,
    with_identity,
)
from gradguard_lint.engine.expressions import operate
from gradguard_lint.engine.imports import module_frame
from gradguard_lint.engine.iteration import iterated
from gradguard_lint.engine.lookups import identify
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import SETTER, Args
from gradguard_lint.engine.proofs import as_proved
from gradguard_lint.engine.tree import takes_all
from gradguard_lint.engine.turns import changed_in_place, note_field, note_shared_field
from gradguard_lint.engine.variables import HEAP
from pytest_gradguard.records import replace


def do_Assign(m: Machine, frame: Frame, node: ast.Assign) -> None:
    value = m.eval(frame, node.value)
    _about_to_bind(m, node)
    for target in node.targets:
        assign(m, frame, target, value)
        if m.place.turns.began and m.place.making:
            note_field(m, frame, node, target, node.value, value)


def _about_to_bind(m: Machine, node: ast.stmt) -> None:
    """Keep the state for exception handlers, if `node` is the last statement that may raise."""
    if node in m.place.ending_assignments:
        m.place.ending_assignments[node] = m.state.copy()


def do_AnnAssign(m: Machine, frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        value = m.eval(frame, node.value)
        _about_to_bind(m, node)
        assign(m, frame, node.target, value)
        if m.place.turns.began and m.place.making:
            note_field(m, frame, node, node.target, node.value, value)


def do_AugAssign(m: Machine, frame: Frame, node: ast.AugAssign) -> None:
    old = m.eval(frame, node.target)
    value = m.eval(frame, node.value)
    _about_to_bind(m, node)
    kept = m.models.in_place(m, frame, node, old)
    only = old.only
    if isinstance(only, Items) and isinstance(node.op, ast.Add):
        value = m.iterated(frame, node.value, value)
        longer = extended(m, only, parts_of(value, element_of(m, value)))
        if only.ident:
            forget_length(m, only)
            store_contents(m, longer)  # a list grows in place, under all its names
        else:
            assign(m, frame, node.target, of(longer))
        return
    value = operate(m, frame, node, node.op, old, value)
    assign(m, frame, node.target, value if kept is None else kept)


def assign(m: Machine, frame: Frame, target: ast.expr, value: Value) -> None:
    if isinstance(target, (ast.Name, ast.Attribute, ast.Subscript)):
        value = with_identity(m, target, value)
    if isinstance(target, ast.Name):
        holder = frame.outer.get(target.id)
        if holder is not None:
            m.rebinds(frame, target, target.id, holder)
        m.write(frame, target.id, value)
        m.facts.origins[(holder or frame).ident, target.id] = m.site(frame, target)
    elif isinstance(target, (ast.Tuple, ast.List)):
        _unpack(m, frame, target, value)
    elif isinstance(target, ast.Attribute):
        owner = m.eval(frame, target.value)
        for atom in owner.atoms:
            if isinstance(atom, Instance):
                setter = _setter(m, frame, target, atom)
                if setter is not None:
                    m.call(frame, target, setter, Args([value]))
                    continue
                m.models.set_attribute(m, frame, target, atom, value)
                m.set_field(atom.ident, target.attr, value)
                note_shared_field(m, atom, target.attr, value)
                m.facts.origins[atom.ident, target.attr] = m.site(frame, target)
            elif isinstance(atom, Class):
                m.set_field(atom.body.ident, target.attr, value)
            elif (
                isinstance(atom, Unknown)
                and (shown := m.models.set_attribute(m, frame, target, atom, value)) is not None
            ):
                rebind(m, frame, target.value, shown)
            elif isinstance(atom, Unknown) and atom.key is not None:
                m.facts.written_on_unknown.add(target.attr)
                m.store[(0, str(("attr", atom.key, target.attr)))] = value
            elif isinstance(atom, ProjectModule):
                home = module_frame(m, atom.name)
                if home is not None:
                    m.rebinds(frame, target, target.attr, home)
                    m.store[(home.ident, target.attr)] = value
            else:
                if isinstance(atom, External):
                    m.facts.written_on_unknown.add(f"{atom.name}.{target.attr}")
                changed = m.models.set_attribute(m, frame, target, atom, value)
                if changed is not None:
                    rebind(m, frame, target.value, changed)
                    changed_in_place(m, frame, target.value, owner, atom, changed)
    elif isinstance(target, ast.Subscript):
        _store_item(m, frame, target, value)


def _setter(m: Machine, frame: Frame, target: ast.Attribute, owner: Instance) -> Value | None:
    """The setter of a property or descriptor of `owner`."""
    setter = m.find_in_class(owner.cls, target.attr + SETTER)
    if setter is not None:
        return m.bind(frame, target, setter, owner)
    kind = m.find_in_class(owner.cls, target.attr)
    for instance in kind.of(Instance) if kind is not None else ():
        method = m.find_in_class(instance.cls, "__set__")
        if method is not None:
            bound = m.bind(frame, target, method, instance)
            return bound.map(lambda atom: of(Partial(of(atom), (of(owner),))))
    return None


def _unpack(m: Machine, frame: Frame, target: ast.Tuple | ast.List, value: Value) -> None:
    count = len(target.elts)
    star = next((i for i, it in enumerate(target.elts) if isinstance(it, ast.Starred)), count)
    value = iterated(m, frame, target, value)
    for index, item in enumerate(target.elts):
        part = value.map(partial(_part, m, index, count, star))
        if isinstance(item, ast.Starred):
            assign(m, frame, item.value, with_identity(m, item, part))
        else:
            assign(m, frame, item, part)


def _part(m: Machine, index: int, count: int, star: int, atom: Atom) -> Value:
    """The part at `index` of `atom` unpacked into `count` targets, with a starred one at `star`."""
    if isinstance(atom, Items) and atom.ends:
        if index == star:
            left = sliced(atom, slice(star, star + 1 - count or None))
            return of(replace(left, kind="list"))
        found = item_at(atom, index) if index < star else None
        found = found or (item_at(atom, index - count) if index > star or star == count else None)
        return found or item_at_unknown_position(element_of(m, of(atom)))
    known = known_items(of(atom))
    if star < count:
        more = len(known) - count if known is not None else -2
        if known is not None and more >= -1:
            if index == star:
                return items("list", known[star : star + more + 1])
            return known[index if index < star else index + more]
        if index == star:
            return sequence(element_of(m, of(atom)))
        return item_at_unknown_position(element_of(m, of(atom)))
    if known is not None and len(known) == count:
        return known[index]
    if isinstance(atom, Unknown):
        return as_proved(m, of(item_of(atom, index)))
    return item_at_unknown_position(element_of(m, of(atom)))


def _store_item(m: Machine, frame: Frame, target: ast.Subscript, value: Value) -> None:
    holder = m.eval(frame, target.value)
    index = m.eval(frame, target.slice)
    for instance in holder.of(Instance):
        method = m.find_in_class(instance.cls, "__setitem__")
        if method is not None:
            bound = m.bind(frame, target, method, instance)
            m.call(frame, target, bound, Args([index, value]))
    changed = m.models.set_item(m, frame, target, holder, index, value)
    if changed is not None:
        rebind(m, frame, target.value, changed)
        return
    for atom in holder.atoms:
        if isinstance(target.slice, ast.Slice):
            forget_length(m, atom)
        key = index.constant
        if isinstance(atom, Unknown):
            _set_on_unknown(m, frame, target, atom, key, value)
        if target in m.place.turns.rewriting and isinstance(atom, Thing) and atom.gpu:
            changed = of(replace(atom, gpu=any(tensor.gpu for tensor in value.tensors())))
        elif target in m.place.turns.rewriting and isinstance(atom, (Items, Table)) and atom.ident:
            changed = _of_items(atom, value)
        elif isinstance(atom, Items) and takes_all(target.slice):
            given = m.iterated(frame, target, value)
            held = Items(atom.kind, known_items(given), element_of(m, given), atom.ident)
            changed = of(held)
        else:
            changed = _with_item(atom, target, index, value)
        if changed is None:
            continue
        if len(holder.choices) > 1:
            changed = join((of(atom), changed))
        if isinstance(atom, (Items, Table)) and atom.ident:
            m.store[atom.ident, HEAP] = changed
        elif isinstance(target.value, (ast.Name, ast.Attribute)):
            rebind(m, frame, target.value, changed)


def _set_on_unknown(
    m: Machine, frame: Frame, target: ast.Subscript, owner: Unknown, key: Hashable, value: Value
) -> None:
    """Record an item set on an unknown container."""
    if not isinstance(key, str):
        items_changed(m, owner.key)
        return
    home = identify(m, frame, target.value) if owner.is_nameless else owner.key
    if home is not None:
        m.facts.written_on_unknown.add(key)
        m.store[0, str(("item", home, key))] = value


def _of_items(atom: Items | Table, value: Value) -> Value:
    """The container `atom` with every item replaced by `value`."""
    if isinstance(atom, Items):
        return of(replace(atom, items=None, element=value, ends=None))
    entries = tuple((key, value) for key, _ in atom.entries)
    rest = atom.rest if closed(atom) else value
    return of(replace(atom, entries=entries, rest=rest, perhaps=()))


def _with_item(atom: Atom, target: ast.Subscript, index: Value, value: Value) -> Value | None:
    """The container `atom` after ``atom[index] = value``; None if it is no container."""
    if isinstance(atom, Table):
        index = as_key(index)
        if isinstance(index.only, Const):
            entries = dict(atom.entries)
            entries[index.constant] = value
            return of(replace(atom, entries=tuple(entries.items())))
        rest = value if atom.rest.is_unknown else join((atom.rest, value))
        keys = index if atom.keys is None else join((atom.keys, index))
        return of(replace(atom, rest=rest, keys=keys, perhaps=()))
    if isinstance(atom, Items) and not isinstance(target.slice, ast.Slice):
        place = index.constant
        if isinstance(place, int) and item_at(atom, place) is not None:
            before, after = split_around(atom, place)
            return of(concatenated(atom, before, ((value,), None, ()), after))
        element = value if atom.element.is_unknown else join((atom.element, value))
        return of(Items(atom.kind, None, element, atom.ident))
    return None


def do_Delete(m: Machine, frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            m.store.drop((frame.ident, target.id))
        elif isinstance(target, ast.Attribute):
            only = m.eval(frame, target.value).only
            if isinstance(only, Instance):
                m.store.drop((only.ident, target.attr))
                m.facts.attribute_names.setdefault(only.ident, {})[target.attr] = None
        elif isinstance(target, ast.Subscript):
            holder = m.eval(frame, target.value)
            only = holder.only
            index = m.eval(frame, target.slice)
            m.models.delete_item(m, frame, target, holder, index)
            for atom in holder.atoms:
                forget_length(m, atom)
                if isinstance(atom, Unknown):
                    items_changed(m, atom.key)
            left = without_item(only, index) if isinstance(only, (Items, Table)) else None
            if left is not None and isinstance(only, (Items, Table)):
                if only.ident:
                    m.store[only.ident, HEAP] = of(left)
                else:
                    rebind(m, frame, target.value, of(left))
