"""Attributes as dictionaries: ``vars(it)``, ``it.__dict__``, ``asdict(it)``; ``globals()``."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import ABSENT, EMPTY, closed, items
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Class,
    External,
    Frame,
    Instance,
    Items,
    ProjectModule,
    Table,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.containers import store_contents, with_identity
from gradguard_lint.engine.fields import fields_of
from gradguard_lint.engine.imports import module_frame
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import last_name
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.containers import container_method, updated
from gradguard_lint.models.transfers.named_tuples import with_fields
from gradguard_lint.words import words
from pytest_gradguard.records import replace

KIND = "attributes"

_SOME_NAMES = (("some_model", "model"), ("SomeOptimizer", "optimizer"))
"""Representatives of unknown names in a module where all names are alike."""

RECORD = "record"
"""The kind of classes whose objects expose all their fields, as pydantic's models do."""

OPEN = "<open>"
"""Store key of a namespace: it may have unknown attributes."""


def may_get_more(m: Machine, atom: Atom) -> None:
    """Record that unknown code may add attributes to the namespace, or options to the parser,
    `atom`."""
    if isinstance(atom, Thing) and atom.kind in ("namespace", "parser") and atom.ident > 0:
        m.set_field(atom.ident, OPEN, constant(True))


def attributes_of(atom: Atom) -> Value:
    """``vars(atom)``; of a module, its globals."""
    if isinstance(atom, (External, Instance, ProjectModule)) or _is_namespace(atom):
        return of(Thing(KIND, "__dict__", parts=(("of", of(atom)),)))
    return UNKNOWN


def as_dict(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with attributes of objects replaced by dicts of the known ones."""

    def change(atom: Atom) -> Value:
        if isinstance(atom, Instance) and atom.cls.what == RECORD:
            return of(_fields_of(m, frame, node, atom))
        owner = _owner(atom) if isinstance(atom, Thing) and atom.kind == KIND else None
        if owner is None:
            return of(atom)
        known = tuple(_attributes(m, frame, node, owner))
        whole = isinstance(owner, Instance) and owner.cls.plain
        return of(Table(known, ABSENT) if whole else Table(known, UNKNOWN, UNKNOWN))

    return value.map(change)


def _is_namespace(atom: Atom) -> bool:
    return isinstance(atom, Thing) and atom.kind == "namespace" and atom.ident > 0


def set_named(
    m: Machine, frame: Frame, node: ast.AST, owner: Atom, name: object, value: Value
) -> bool:
    """Set an attribute by a name in a string; whether that was possible."""
    home = module_frame(m, owner.name) if isinstance(owner, ProjectModule) else None
    if home is not None and isinstance(name, str):
        m.rebinds(frame, node, name, home)
        m.store[home.ident, name] = value
        return True
    if not isinstance(name, str) or not isinstance(owner, (Instance, Thing)):
        may_get_more(m, owner)
        return False
    if isinstance(owner, Thing) and not _is_namespace(owner):
        return False
    m.set_field(owner.ident, name, value)
    return True


def method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """A method of such a dictionary."""
    owner = _owner(thing)
    of_module = isinstance(owner, (External, ProjectModule))
    if owner is None or (of_module and name not in ("get", "update")):
        return None
    if name not in ("items", "get", "keys", "values", "copy"):
        given = args.get(0)
        if name != "update" or (given is not None and not isinstance(given.only, Table)):
            may_get_more(m, owner)
    if name == "update":
        for key, value in updated(m, frame, node, EMPTY, args.get(0), args).entries:
            set_named(m, frame, node, owner, key, value)
        return NOTHING
    if name == "items":
        known = _attributes(m, frame, node, owner)
        return items("list", [items("tuple", [constant(key), value]) for key, value in known])
    if name == "get":
        return item(m, frame, node, thing, args.get(0) or UNKNOWN)
    if name in ("copy", "keys", "values"):
        table = as_dict(m, frame, node, of(thing)).only
        return container_method(m, frame, node, table, name, args) if table is not None else None
    return None


def item(m: Machine, frame: Frame, node: ast.AST, thing: Thing, index: Value) -> Value:
    """``vars(thing)[index]``."""
    owner, name = _owner(thing), index.constant
    if isinstance(owner, External) and not isinstance(name, str):
        return any_attribute_of(m, owner)
    if owner is None or not isinstance(name, str):
        return UNKNOWN
    return m.attribute(frame, node, of(owner), name)


def any_attribute_of(m: Machine, atom: Atom) -> Value:
    """A library module's attribute of unknown name, if all are modules or optimizers:
    ``torchvision.models``."""
    if not isinstance(atom, External):
        return UNKNOWN
    registry = registry_of(m)
    for short, made in _SOME_NAMES:
        name = f"{atom.name}.{short}"
        row = registry.row(registry.canonical(name))
        if row is not None and row.does == made:
            return of(External(name))
    return UNKNOWN


def set_item(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, index: Value, value: Value
) -> None:
    """``vars(thing)[index] = value``."""
    owner = _owner(thing)
    if owner is not None:
        set_named(m, frame, node, owner, index.constant, value)


def _owner(thing: Thing) -> Atom | None:
    return (thing.part("of") or UNKNOWN).only


def _attributes(m: Machine, frame: Frame, node: ast.AST, owner: Atom) -> list[tuple[str, Value]]:
    """The known attributes of `owner`."""
    if not isinstance(owner, (Instance, Thing)):
        return []
    names = [name for name, _ in owner.parts] if isinstance(owner, Thing) else []
    names += [name for name, _ in m.fields(owner.ident)]
    known = (name for name in dict.fromkeys(names) if name.isidentifier())
    return [(name, m.attribute(frame, node, of(owner), name)) for name in known]


def fields_as_dict(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``dataclasses.asdict(it)``: a new dict of its fields, recursively."""
    return (args.get(0) or UNKNOWN).map(lambda atom: _unfolded(m, frame, node, atom, ()))


def _unfolded(
    m: Machine, frame: Frame, node: ast.AST, atom: Atom, path: tuple[object, ...]
) -> Value:
    def inside(value: Value, key: object) -> Value:
        if len(path) > DEEP:
            return UNKNOWN
        return value.map(lambda part: _unfolded(m, frame, node, part, (*path, key)))

    if isinstance(atom, Instance) and (_is_dataclass(atom) or atom.cls.what == RECORD):
        known = _fields_of(m, frame, node, atom)
        entries = tuple((name, inside(it, name)) for name, it in known.entries)
        table = replace(known, entries=entries, ident=m.ident_at(node, "fields", *path))
        store_contents(m, table)
        return of(table)
    if isinstance(atom, Items):
        converted = atom.items and tuple(inside(it, i) for i, it in enumerate(atom.items))
        held = Items(atom.kind, converted, inside(atom.element, None))
        return with_identity(m, node, of(held)) if not path else of(held)
    return of(atom)


def _fields_of(m: Machine, frame: Frame, node: ast.AST, atom: Instance) -> Table:
    """The fields of `atom` with their values."""
    names = fields_of(m, atom.cls)
    entries = tuple((name, m.attribute(frame, node, of(atom), name)) for name in names)
    more = atom.cls.what == RECORD and (
        any(part.node.keywords for part in (atom.cls, *atom.cls.above))
        or any(m.find_in_class(atom.cls, name) for name in ("Config", "model_config"))
    )
    return Table(entries, UNKNOWN, UNKNOWN) if more else Table(entries, ABSENT)


def record_method(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, name: str, args: Args
) -> Value | None:
    """A method that all such objects have."""
    if args.open or args.perhaps:
        return None
    if name in _AS_DICT and args.keywords.keys() <= {"mode"} and not _changes(instance):
        return _unfolded(m, frame, node, instance, ())
    if name in _COPIES and args.keywords.keys() <= {"update", "deep"}:
        changed = args.get(None, "update")
        if changed is None:
            return with_fields(m, node, instance, Args())
        table = changed.only
        if isinstance(table, Table) and closed(table):
            named = {str(key): value for key, value in table.entries}
            return with_fields(m, node, instance, Args(keywords=named))
    return None


def _changes(instance: Instance) -> bool:
    """Whether methods of its class change its fields, or their export."""
    return any(
        last_name(getattr(decorator, "func", decorator)) in _CHANGING
        for part in (instance.cls, *instance.cls.above)
        for item in part.node.body
        if isinstance(item, ast.FunctionDef)
        for decorator in item.decorator_list
    )


_CHANGING = words(
    "computed_field field_serializer field_validator model_serializer model_validator "
    "root_validator validator"
)

_AS_DICT = words("model_dump dict")
_COPIES = words("model_copy copy")
RECORD_METHODS = _AS_DICT | _COPIES
"""Methods of such objects with known results."""


DEEP = 4
"""The depth to which fields are converted."""


def _is_dataclass(atom: Instance) -> bool:
    return any(part.node.decorator_list for part in (atom.cls, *atom.cls.above))


def fields(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dataclasses.fields(it)``."""
    only = (args.get(0) or UNKNOWN).only
    cls = only.cls if isinstance(only, Instance) else only
    if not isinstance(cls, Class):
        return UNKNOWN
    return items(
        "tuple",
        [of(Thing("namespace", name, parts=(("name", constant(it)),))) for it in fields_of(m, cls)],
    )
