"""``operator.attrgetter``, ``itemgetter`` and ``methodcaller``: functions that ask an object."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import items
from gradguard_lint.domain.values import UNKNOWN, Frame, Thing, Value, of
from gradguard_lint.engine.attributes import item
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row

KIND = "getter"


def getter(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``attrgetter(...)``: what it asks for is kept."""
    if args.rest is not None or args.open or not args.positional:
        return UNKNOWN
    parts = [(str(index), value) for index, value in enumerate(args.positional)]
    return of(Thing(KIND, name, parts=(*parts, *args.keywords.items())))


def asked(m: Machine, frame: Frame, node: ast.AST, thing: Thing, args: Args) -> Value:
    """``getter(it)``."""
    receiver = args.get(0)
    if receiver is None:
        return UNKNOWN
    given = [value for name, value in thing.parts if name.isdigit()]
    if thing.name.endswith("methodcaller"):
        method = _attribute(m, frame, node, receiver, given[0])
        keywords = {name: value for name, value in thing.parts if not name.isdigit()}
        return m.call(frame, node, method, Args(given[1:], keywords))
    ask = item if thing.name.endswith("itemgetter") else _attribute
    results = [ask(m, frame, node, receiver, part) for part in given]
    return results[0] if len(results) == 1 else items("tuple", results)


def _attribute(m: Machine, frame: Frame, node: ast.AST, receiver: Value, name: Value) -> Value:
    dotted = name.constant
    if not isinstance(dotted, str):
        return UNKNOWN
    for part in dotted.split("."):
        receiver = m.attribute(frame, node, receiver, part)
    return receiver
