"""Declared fields of classes (dataclasses, named tuples): their order, and their arguments."""

from __future__ import annotations

import ast

from gradguard_lint.domain.values import UNKNOWN, Class, Frame, Instance, Value
from gradguard_lint.engine.arguments import optional_or_default
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import last_name


def fields_of(m: Machine, cls: Class) -> tuple[str, ...]:
    """The declared fields of a class, inherited ones first."""
    names: dict[str, None] = {}
    for part in reversed((cls, *cls.above)):
        names.update(dict.fromkeys(_own_fields(m, part)))
    return tuple(names)


def _own_fields(m: Machine, cls: Class) -> list[str]:
    """Fields declared in the body of a class: annotated names, or, with unannotated field calls,
    only the field calls."""
    annotated: list[str] = []
    made: list[str] = []
    by_calls = False
    for item in cls.node.body:
        if isinstance(item, ast.AnnAssign) and not _of_the_class(item.annotation):
            target: ast.expr = item.target
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Call):
            target = item.targets[0]
        else:
            continue
        if not isinstance(target, ast.Name):
            continue
        stated = m.find_in((cls,), target.id) if isinstance(item.value, ast.Call) else None
        if stated is not None and m.models.is_field(stated):
            by_calls = by_calls or isinstance(item, ast.Assign)
            made.append(target.id)
        if isinstance(item, ast.AnnAssign):
            annotated.append(target.id)
    return made if by_calls else annotated


def _of_the_class(annotation: ast.expr) -> bool:
    """Whether an annotation declares a class variable."""
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return last_name(annotation) == "ClassVar"


def parts_of(m: Machine, atom: Instance) -> list[Value]:
    """The fields of an object, in declaration order."""
    parts = [m.read(atom.ident, name) for name in fields_of(m, atom.cls)]
    return [part if part is not None else UNKNOWN for part in parts]


def give_fields(
    m: Machine, frame: Frame, node: ast.AST, cls: Class, instance: Instance, args: Args
) -> None:
    """Set the fields of a new object from the arguments and the class's defaults."""
    place = 0
    for name in fields_of(m, cls):
        stated = m.find_in_class(cls, name)
        words, placed = m.models.field_given_as(name, stated)
        given = next((args.keywords[word] for word in words if word in args.keywords), None)
        if placed:
            given = given or args.get(place)
            place += 1
        value = m.models.field_value(m, frame, node, name, stated, given)
        word = next(filter(args.may_pass, words), None)
        if given is None and word is not None:
            value = optional_or_default(m, cls.node, word, args, value)
        if value is not None:
            m.set_field(instance.ident, name, value)
    after = m.find_in_class(cls, "__post_init__")
    if after is not None:
        m.call(frame, node, m.bind(frame, node, after, instance), Args())
