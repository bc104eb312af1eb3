"""``functools.singledispatch``: a call runs the function for the first argument's class."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.values import (
    METHOD,
    UNKNOWN,
    Class,
    External,
    Frame,
    Function,
    Instance,
    Method,
    Partial,
    Tensor,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.branches import definite
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.transfers.type_questions import is_of, type_name

REGISTERED = "<registered>"
"""Store key: pairs of a class and its function."""


def dispatching(m: Machine, node: ast.AST, name: str, function: Value) -> Value:
    """`function` as the default of a dispatcher."""
    parts = [("function", function)]
    if name.endswith("method"):
        parts.append((METHOD, constant(True)))
    return of(Thing("dispatch", name, m.ident_at(node), parts=tuple(parts)))


def method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """``f.register(kind, function)``, ``f.dispatch(kind)``."""
    if name != "register":
        return None
    kind, function = args.get(0, "cls"), args.get(1, "func")
    if kind is None:
        return None
    if function is None:
        kinds = _annotated(m, thing, kind)
        if kinds is None:  # it is the class; the function follows
            return of(Partial(of(Method(thing, "register")), (kind,)))
        kind, function = kinds, kind
    known = m.read(thing.ident, REGISTERED)
    pairs = known_items(known) if known is not None else ()
    pair = items("tuple", [kind, function])
    m.store[thing.ident, REGISTERED] = items("tuple", [*(pairs or ()), pair])
    return function


def _first(thing: Thing) -> int:
    """The position of the dispatching argument."""
    return 1 if thing.part(METHOD) is not None else 0


def _annotated(m: Machine, thing: Thing, function: Value) -> Value | None:
    """The annotated class of a function's argument; None if it isn't a function."""
    only = function.only
    if not isinstance(only, Function) or isinstance(only.node, ast.Lambda):
        return None
    spec = only.node.args
    parameters = [*spec.posonlyargs, *spec.args][_first(thing) :]
    written = parameters[0].annotation if parameters else None
    if isinstance(written, ast.Constant) and isinstance(written.value, str):
        written = _parsed(written.value)
    if written is None:
        return UNKNOWN
    alternatives: list[ast.expr] = [written]
    while isinstance(alternatives[-1], ast.BinOp):
        last = alternatives.pop()
        assert isinstance(last, ast.BinOp)
        alternatives += (last.right, last.left)
    return items("tuple", [m.eval(only.frame, part) for part in alternatives])


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def dispatched(m: Machine, frame: Frame, node: ast.AST, thing: Thing, args: Args) -> Value:
    """A call of the function for the argument's class, if that is known."""
    place = _first(thing)
    if place >= len(args.positional):
        return m.call(frame, node, UNKNOWN, args)
    known = m.read(thing.ident, REGISTERED)
    rows = [known_items(row) for row in (known_items(known) if known is not None else ()) or ()]
    pairs = [(row[0], row[1]) for row in rows if row]

    def chosen(value: Value) -> Value:
        exact, true, open_ = None, [], False
        for kind, function in pairs:
            for one in known_items(kind) or (kind,):
                if _exactly(value, one):
                    exact = function
                answer = definite(is_of(m, value, one))
                if answer:
                    true.append((one, function))
                open_ = open_ or answer is None
        if exact is not None:
            return exact
        if open_:
            return UNKNOWN
        if not true:
            return thing.part("function") or UNKNOWN
        kinds = [kind.only for kind, _ in true]
        for kind, function in true:
            if all(_below(kind.only, other) for other in kinds):
                return function
        return UNKNOWN

    given = args.positional[place]
    if len(given.choices) == 1:
        return m.call(frame, node, chosen(given), args)
    function = given.map(lambda atom: chosen(of(atom)))
    return m.call(frame, node, function, args)


def _exactly(value: Value, kind: Value) -> bool:
    """Whether the class of `value` is exactly `kind`."""
    only, asked = value.only, kind.only
    if isinstance(asked, External):
        if isinstance(only, Tensor) and only.grad == "parameter":
            return asked.name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
        return asked.name == type_name(only)
    return isinstance(only, Instance) and isinstance(asked, Class) and asked is only.cls


def _below(kind: object, other: object) -> bool:
    """Whether `kind` is `other` or a subclass."""
    if isinstance(kind, Class) and isinstance(other, Class):
        return kind is other or other in kind.above
    return kind == other
