"""Attributes and items: of objects, classes, modules and containers."""

from __future__ import annotations

import ast

from gradguard_lint.domain.payloads import Capture
from gradguard_lint.domain.shapes import (
    ABSENT,
    as_key,
    as_owned,
    as_received,
    closed,
    inner,
    item_at,
    item_at_unknown_position,
    item_parts,
    items,
    lower_bound,
    of_a_library,
    rest_of,
    sequence,
    sliced,
)
from gradguard_lint.domain.unknowns import is_process_specific, process_specific
from gradguard_lint.domain.values import (
    METHOD,
    STUB,
    UNKNOWN,
    Atom,
    Bound,
    Class,
    Const,
    Delayed,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    ProjectModule,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.branches import run_alternatives
from gradguard_lint.engine.caching import CACHED_PROPERTY, cache_as_attribute
from gradguard_lint.engine.containers import item_of, item_of_unknown, store_contents
from gradguard_lint.engine.fields import parts_of
from gradguard_lint.engine.imports import module_frame, star_import
from gradguard_lint.engine.lookups import lookup_unknown_key
from gradguard_lint.engine.machine import ARRIVED, Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import as_proved, identified
from gradguard_lint.engine.truth import asks_on_gpu
from gradguard_lint.engine.variables import HEAP
from pytest_gradguard.records import replace


def captured(
    m: Machine, frame: Frame, node: ast.AST, name: str, value: Value, home: Frame
) -> Value:
    """`value` of an enclosing scope, as a worker sees it."""
    first = m.facts.loaded.get((home.ident, name)) if value.is_unknown else None
    is_global = home.parent is None
    if home.module.is_stub:
        return value
    held = inner(value if first is None else first, 2)
    if any(of_a_library(atom) or (is_global and isinstance(atom, Instance)) for atom in held):
        m.effect(
            frame,
            node,
            name,
            Capture(
                value,
                on_import=first,
                module=home.module.name,
                is_global=is_global,
            ),
        )
    if m.in_process_worker:
        return as_received(value, m.worker_ident)
    return value


def on_Attribute(m: Machine, frame: Frame, node: ast.Attribute) -> Value:
    value = called_attribute(m, frame, node)
    if any(isinstance(it.atom, Method) for it in value.choices):
        return m.models.read_attribute(m, value)
    return value


def called_attribute(m: Machine, frame: Frame, node: ast.Attribute) -> Value:
    """``receiver.name`` for a call: possibly a method."""
    return attribute(m, frame, node, m.eval(frame, node.value), node.attr)


def attribute(m: Machine, frame: Frame, node: ast.AST, receiver: Value, name: str) -> Value:
    """``receiver.name``."""
    choices = receiver.choices
    if len(choices) > 1 and any(_is_computed(m, it.atom, name) for it in choices):
        return run_alternatives(m, choices, lambda atom: _attribute(m, frame, node, atom, name))
    return receiver.map(lambda atom: _attribute(m, frame, node, atom, name))


def _is_computed(m: Machine, atom: Atom, name: str) -> bool:
    """Whether this attribute of `atom` runs code of the program."""
    if not isinstance(atom, Instance) or m.read(atom.ident, name) is not None:
        return False
    found = m.find_in_class(atom.cls, name)
    if found is not None:
        return any("property" in it.marks for it in found.of(Function))
    return not atom.cls.what and m.find_in_class(atom.cls, "__getattr__") is not None


def _attribute(m: Machine, frame: Frame, node: ast.AST, atom: Atom, name: str) -> Value:
    if isinstance(atom, Instance):
        return instance_attribute(m, frame, node, atom, name)
    if isinstance(atom, Class):
        return class_attribute(m, atom, name)
    if isinstance(atom, ProjectModule):
        return module_attribute(m, frame, node, atom.name, name)
    if isinstance(atom, External):
        return m.models.external_attribute(m, frame, node, atom, name)
    if isinstance(atom, (Tensor, Thing)):
        return m.models.attribute(m, frame, node, atom, name)
    if isinstance(atom, Unknown):
        base = atom.key if atom.key is not None else ("node", id(node))
        shown = m.models.shown_by_attribute(m, name, atom)
        if shown is not None:
            return shown
        key = asks_on_gpu(base) if name == "is_cuda" else ("attr", base, name)
        fixed = m.store.get((0, str(key))) if name in m.facts.written_on_unknown else None
        identity = None if atom.identity is None else ("attr", atom.identity, name)
        return fixed if fixed is not None else as_proved(m, of(Unknown(key, identity=identity)))
    if isinstance(atom, Const) and name == "value":
        return of(atom)  # a member of an enumeration
    if isinstance(atom, Function) and name in ("__name__", "__doc__"):
        return UNKNOWN
    if isinstance(atom, Items) and name in ("values", "indices") and any(atom.element.tensors()):
        pair = atom.items if atom.items is not None and len(atom.items) == 2 else None
        return atom.element if pair is None else pair[name == "indices"]
    return of(Method(atom, name))


def instance_attribute(m: Machine, frame: Frame, node: ast.AST, atom: Instance, name: str) -> Value:
    value = m.read(atom.ident, name)
    if value is not None:
        value = as_proved(m, value)
        if m.place.worker is not None and atom.born != m.place.worker.ident:
            shipped = m.in_process_worker and m.place.worker.call.channel.ships
            if shipped and m.pickles_itself(atom) and (atom.ident, ARRIVED) not in m.store:
                return UNKNOWN
            if any(map(of_a_library, value.atoms)):
                m.effect(frame, node, f"self.{name}", Capture(value, owner=atom.ident))
            if m.in_process_worker:
                return as_received(value, m.worker_ident)
        return as_field_of(m, atom, value, name)
    found = m.find_in_class(atom.cls, name)
    if found is not None:
        return bind(m, frame, node, found, atom)
    asks = atom.cls.what in ("", STUB) and name != "__dict__"
    asked = m.find_in_class(atom.cls, "__getattr__") if asks else None
    if asked is not None:
        return m.call(frame, node, bind(m, frame, node, asked, atom), Args([constant(name)]))
    return m.models.inherited_attribute(m, frame, node, atom, name)


def as_field_of(m: Machine, atom: Instance, value: Value, name: str = "") -> Value:
    """`value`, read from `atom`: owned by this task if `atom` is, unless other tasks' objects were
    created with it as well."""
    if m.place.worker is None or atom.born != m.place.worker.ident:
        return value
    return as_owned(value, m.place.worker.ident, m.place.turns.shared_by(atom.ident, name))


def bind(m: Machine, frame: Frame, node: ast.AST, value: Value, receiver: Atom) -> Value:
    """A class attribute, accessed through an object."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Function):
            if "static" in atom.marks:
                return of(atom)
            if "class" in atom.marks and isinstance(receiver, Instance):
                return of(Bound(atom, receiver.cls))
            if "property" in atom.marks:
                made = m.call(frame, node, of(Bound(atom, receiver)), Args())
                if CACHED_PROPERTY in atom.marks and isinstance(receiver, Instance):
                    cache_as_attribute(m, receiver, atom.name, made)
                return made
            return of(Bound(atom, receiver))
        if isinstance(atom, Partial) and atom.method and isinstance(receiver, Instance):
            inner = atom.function.map(lambda part: bind(m, frame, node, of(part), receiver))
            return of(Partial(inner, atom.args, atom.keywords))
        if isinstance(atom, Delayed) and isinstance(receiver, Instance):
            inner = atom.function.map(lambda part: bind(m, frame, node, of(part), receiver))
            return of(replace(atom, function=inner))
        if isinstance(atom, Thing) and atom.part(METHOD) is not None:
            return of(Partial(of(atom), (of(receiver),)))
        if isinstance(atom, Instance) and isinstance(receiver, Instance):
            getter = m.find_in_class(atom.cls, "__get__")
            if getter is not None and not any(getter.of(Instance)):
                asked = Args([of(receiver), of(receiver.cls)])
                return m.call(frame, node, bind(m, frame, node, getter, atom), asked)
        return of(atom)

    return value.map(change)


def class_attribute(m: Machine, cls: Class, name: str) -> Value:
    value = m.find_in_class(cls, name)
    if value is None:
        return UNKNOWN
    return value.map(
        lambda atom: (
            of(Bound(atom, cls))
            if isinstance(atom, Function) and "class" in atom.marks
            else of(atom)
        )
    )


def module_attribute(m: Machine, frame: Frame, node: ast.AST, module: str, name: str) -> Value:
    """The attribute `name` of a project module."""
    home = module_frame(m, module)
    if home is not None:
        value = m.read(home.ident, name)
        if value is not None:
            if m.place.worker is not None and home.born != m.place.worker.ident:
                return captured(m, frame, node, name, value, home)
            return value
        star = star_import(m, home, name)
        if star is not None:
            return star
    within = f"{module}.{name}"
    if m.project.is_module(within):
        return of(ProjectModule(within))
    return UNKNOWN


def on_Subscript(m: Machine, frame: Frame, node: ast.Subscript) -> Value:
    value = m.eval(frame, node.value)
    found = item(m, frame, node, value, m.eval(frame, node.slice))
    if found.is_nameless and value.is_unknown:
        return identified(m, frame, node, found, (value,))
    return found


def item(m: Machine, frame: Frame, node: ast.AST, value: Value, index: Value) -> Value:
    """``value[index]``."""
    found = m.filtered(value.map(lambda atom: _item(m, frame, node, atom, index)))
    if (is_process_specific(index) or is_process_specific(value)) and all(
        map(_may_be_a_number, found.atoms)
    ):
        return process_specific(id(node))
    return as_owned(found, m.worker_ident) if _picked_by_task(m, node, index) else found


def _picked_by_task(m: Machine, node: ast.AST, index: Value) -> bool:
    """Whether a thread selects the item by a value of its task, so that it owns the item."""
    worker = m.place.worker
    if worker is None or not worker.own or not isinstance(node, ast.Subscript):
        return False
    return not isinstance(node.slice, ast.Constant) and worker.own.issuperset(index.atoms)


def _may_be_a_number(atom: Atom) -> bool:
    return isinstance(atom, (Const, Unknown))


def _part(part: Tensor, written: ast.expr, index: Value) -> Tensor:
    """`part` of an array: a view, if it is selected by numbers or slices."""
    only = index.only
    if isinstance(only, Const) and isinstance(only.value, int):
        return replace(part, extent=part.extent[1:])
    if isinstance(only, Unknown) and isinstance(only.key, tuple) and only.key[0] == "int":
        return replace(part, extent=part.extent[1:])
    cuts = written.elts if isinstance(written, ast.Tuple) else [written]
    if all(isinstance(cut, (ast.Slice, ast.Constant)) for cut in cuts):
        apart = len(cuts) > 1 or any(getattr(cut, "step", None) for cut in cuts)
        return replace(part, extent=(), strided=part.strided or apart)
    return replace(part, memory=None, extent=())


def _cut(m: Machine, frame: Frame, node: ast.Slice) -> slice | None:
    """The slice that `node` evaluates to, if its bounds are known."""
    bounds: list[int | None] = []
    for part in (node.lower, node.upper, node.step):
        value = m.eval(frame, part)
        bound = value.constant
        if not isinstance(bound, int) and not (bound is None and value.is_none):
            return None
        bounds.append(bound)
    return slice(*bounds) if bounds[2] != 0 else None


def _stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)


def get_or_create(m: Machine, table: Table, index: Value, made: Value) -> Value:
    """The item of `table` at `index`, created as `made` if it is missing.

    All items at unknown keys are one.
    """
    key = index.constant if isinstance(index.only, Const) else None
    known = table.get(key) if isinstance(index.only, Const) else None
    if known is not None:
        return known

    def own(atom: Atom) -> Atom:
        if not isinstance(atom, (Items, Table)) or not atom.ident:
            return atom
        atom = replace(atom, ident=m.ident_of(("item", table.ident, index.only, type(atom))))
        if (atom.ident, HEAP) not in m.store:
            store_contents(m, atom)
        return atom

    new = Value(tuple(replace(choice, atom=own(choice.atom)) for choice in made.choices))
    others = () if table.rest == ABSENT else (table.rest,)
    if isinstance(index.only, Const):
        entries = (*table.entries, (key, join((new, *others))))
        store_contents(m, replace(table, entries=entries))
        return entries[-1][1]
    rest = join((new, *others))
    keys = index if table.keys is None else join((table.keys, index))
    store_contents(m, replace(table, rest=rest, keys=keys, perhaps=()))
    return join((*(value for _, value in table.entries), rest))


def _is_fixed(index: ast.Slice) -> bool:
    """Whether all bounds of a slice are literals."""
    bounds = (index.lower, index.upper, index.step)
    return all(bound is None or isinstance(bound, ast.Constant) for bound in bounds)


def _item(m: Machine, frame: Frame, node: ast.AST, atom: Atom, index: Value) -> Value:
    written = node.slice if isinstance(node, ast.Subscript) else ast.Constant(None)
    if len(index.choices) > 1 and isinstance(atom, (Items, Table)):
        return index.map(lambda part: _item(m, frame, node, atom, of(part)))
    if isinstance(atom, Items):
        position = index.constant
        if isinstance(written, ast.Slice):
            has_positions = atom.items is not None or atom.ends
            cut = _cut(m, frame, written) if has_positions else None
            return sequence(atom.element, atom.kind) if cut is None else of(sliced(atom, cut))
        if isinstance(position, int):
            others = sliced(atom, slice(position, None)).element if atom.ends else atom.element
            return item_at(atom, position) or item_at_unknown_position(others)
        if atom.ends:
            return _counted_item(m, atom, index.only)
        if atom.items is None or _stored(node):
            return atom.element
        return lookup_unknown_key(
            m, frame, written, index, tuple(enumerate(atom.items)), atom.element
        )
    if isinstance(atom, Table):
        index = as_key(index)
        known = atom.get(index.constant) if isinstance(index.only, Const) else None
        if known is not None:
            return known
        if atom.missing is not None and atom.ident and not _stored(node):
            return get_or_create(m, atom, index, m.call(frame, node, atom.missing, Args()))
        if isinstance(index.only, Const):
            return item_at_unknown_position(rest_of(atom))
        anything = item_at_unknown_position(
            join([*(value for _, value in atom.entries), rest_of(atom)])
        )
        if _stored(node):
            return anything
        sure = closed(atom)
        other = None if sure else rest_of(atom)
        return lookup_unknown_key(
            m, frame, written, index, atom.entries, anything, other, closed=sure
        )
    if isinstance(atom, Instance):
        method = m.find_in_class(atom.cls, "__getitem__")
        if method is not None:
            return m.call(frame, node, m.bind(frame, node, method, atom), Args([index]))
        if atom.cls.what == "tuple":
            whole = items("tuple", parts_of(m, atom))
            return whole.map(lambda part: _item(m, frame, node, part, index))
    if isinstance(atom, Tensor):
        return of(_part(m.models.indexed(m, frame, node, atom), written, index))
    if isinstance(atom, (Thing, Method)):
        return m.models.item(m, frame, node, atom, index)
    if isinstance(atom, Unknown) and (atom.key is not None or atom.identity is not None):
        if isinstance(index.only, Const):
            return as_proved(m, item_of_unknown(m, atom, index.constant))
        if isinstance(written, ast.Slice) and _is_fixed(written):
            return as_proved(m, of(item_of(atom, ast.unparse(written))))
    if isinstance(atom, External) and atom.name == "os.environ":
        return unknown(("env", index.constant))
    if isinstance(atom, Const) and isinstance(atom.value, str):
        place: object = index.constant
        if isinstance(written, ast.Slice):
            place = _cut(m, frame, written)
        if isinstance(place, slice) or (
            isinstance(place, int) and -len(atom.value) <= place < len(atom.value)
        ):
            return constant(atom.value[place])
    return UNKNOWN


def _counted_item(m: Machine, atom: Items, number: Atom | None) -> Value:
    """The item at an unknown index `number`, which may have a lower bound."""
    key = number.key if isinstance(number, Unknown) else None
    least = lower_bound(key)
    if least is None or least < 0:
        return atom.element
    head, middle, tail = item_parts(sliced(atom, slice(least, None)))
    numbered = enumerate(head, least)
    may = (it for n, it in numbered if not m.conflicts(frozenset({(("eq", key, n), True)})))
    return join((*may, *((middle,) if middle else ()), *tail))
