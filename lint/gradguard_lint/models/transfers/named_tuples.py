"""Named tuples: classes created by calls, and copies with other fields."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import ABSENT, known_items
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Class,
    External,
    Frame,
    Instance,
    Table,
    Value,
    of,
)
from gradguard_lint.engine.containers import with_identity
from gradguard_lint.engine.fields import fields_of, parts_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row


def named_tuple(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``namedtuple("Name", "first second")``: a class."""
    title = args.get(0, "typename")
    names = _names(args.get(1, "field_names", "fields"))
    if title is None or not isinstance(title.constant, str) or not names:
        return UNKNOWN
    if not all(part.isidentifier() for part in (title.constant, *names)):
        return UNKNOWN
    written = m.caches.made_classes.get(node)
    if written is None:
        source = "\n    ".join((f"class {title.constant}:", *(f"{part}: object" for part in names)))
        written = ast.parse(source).body[0]
        for below in ast.walk(written):
            ast.copy_location(below, node)
        m.caches.made_classes[node] = written
    assert isinstance(written, ast.ClassDef)
    body = Frame(m.new_ident(), frame.module, frame, frame.function, is_class=True, born=frame.born)
    cls = Class(written, frame.module, frame, (External("typing.NamedTuple"),), body, "tuple")
    body.cls = cls
    defaults = args.get(None, "defaults")
    given = (known_items(defaults) if defaults is not None else None) or ()
    for part, value in zip(reversed(names), reversed(given), strict=False):
        m.store[body.ident, part] = value
    return of(cls)


def _names(given: Value | None) -> list[str]:
    """The field names in a string or sequence."""
    if given is None:
        return []
    if isinstance(given.constant, str):
        return given.constant.replace(",", " ").split()
    found = []
    for value in known_items(given) or ():
        pair = known_items(value)
        name = (pair[0] if pair else value).constant
        if not isinstance(name, str):
            return []
        found.append(name)
    return found


def with_fields(m: Machine, node: ast.AST, instance: Instance, args: Args) -> Value:
    """A copy of `instance` with some fields replaced."""
    ident = m.ident_at(node, "replaced", instance.ident)
    for name, value in list(m.fields(instance.ident)):
        m.set_field(ident, name, value)
    for name, value in args.keywords.items():
        m.set_field(ident, name, value)
    return of(Instance(instance.cls, ident, m.worker_ident))


def replaced(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``dataclasses.replace(it, ...)``."""

    def change(atom: Atom) -> Value:
        return with_fields(m, node, atom, args) if isinstance(atom, Instance) else UNKNOWN

    return (args.get(0) or UNKNOWN).map(change)


def method(m: Machine, node: ast.AST, instance: Instance, name: str, args: Args) -> Value | None:
    """A method that all named tuples have."""
    if name == "_replace":
        return with_fields(m, node, instance, args)
    if name == "_asdict":
        names = fields_of(m, instance.cls)
        entries = tuple(zip(names, parts_of(m, instance), strict=True))
        return with_identity(m, node, of(Table(entries, ABSENT)))
    return None
