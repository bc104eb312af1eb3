"""Comprehensions, and what iterating an object of the project gives."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache

from gradguard_lint.domain.conditions import without
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import ABSENT, as_key, items, known_items, sequence
from gradguard_lint.domain.shapes import inner as inner_atoms
from gradguard_lint.domain.state import doubt
from gradguard_lint.domain.values import (
    GRADIENT,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    Frame,
    Instance,
    Items,
    Method,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    guarded,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.branches import assume_test, condition, definite, enter_branch, is_plain
from gradguard_lint.engine.containers import adopted, as_long_as, element_of
from gradguard_lint.engine.fields import parts_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend
from gradguard_lint.engine.truth import compare
from gradguard_lint.engine.turns import take


def on_ListComp(m: Machine, frame: Frame, node: ast.ListComp) -> Value:
    return _comprehension(m, frame, node, "list")


def on_SetComp(m: Machine, frame: Frame, node: ast.SetComp) -> Value:
    return _comprehension(m, frame, node, "set")


def on_DictComp(m: Machine, frame: Frame, node: ast.DictComp) -> Value:
    pairs: list[tuple[Value, Value]] = []

    def pair(inner: Frame) -> Value:
        pairs.append((as_key(m.eval(inner, node.key)), m.eval(inner, node.value)))
        return UNKNOWN

    source = _first(m, frame, node.generators[0])
    known = known_items(source) if len(node.generators) == 1 else None
    if known is not None and len(known) <= 6:
        _, whole = _one_by_one(m, frame, node, node.generators[0], known, pair)
        if whole and all(isinstance(key.only, Const) for key, _ in pairs):
            entries = {key.constant: value for key, value in pairs}
            return adopted(m, node, of(Table(tuple(entries.items()), ABSENT)))
        if pairs:
            keys, values = zip(*pairs, strict=True)
            return adopted(m, node, of(Table((), join(values), join(keys))))
    inner = _scope(m, frame, node, node.generators, source)
    key = _each(m, inner, node.key, source)
    value = _each(m, inner, node.value, source)
    return adopted(m, node, of(Table((), value, key)))


def _one_by_one(
    m: Machine,
    frame: Frame,
    node: ast.expr,
    generator: ast.comprehension,
    known: tuple[Value, ...],
    element: Callable[[Frame], Value],
) -> tuple[list[Value], bool]:
    """What a comprehension makes of items that pass its tests; whether they certainly do."""
    results = []
    whole = True
    several = len(known) > 1
    m.loop_depth += several
    began = m.turn
    try:
        for item in known:
            if several:
                m.turn = m.new_ident()
                take(m, item)
            inner = scope_of(m, frame, node)
            m.assign(inner, generator.target, item)
            inner.loop_names.append(names_in(generator.target))
            before = m.state.assumed
            m.state.assumed = before.copy()
            for test in generator.ifs:
                value = m.eval(inner, test)
                whole = whole and definite(value) is not None
                if not enter_branch(m, inner, test, value, True):
                    break
            else:
                results.append(element(inner))
            m.state.assumed = before
    finally:
        m.loop_depth -= several
        m.turn = began
    return results, whole


def scope_of(m: Machine, frame: Frame, node: ast.expr) -> Frame:
    """The scope of a comprehension."""
    inner = Frame(m.new_ident(), frame.module, frame, frame.function, born=frame.born)
    inner.outer = dict(frame.outer)
    if not is_plain(m, node):
        for name in _bound_outside(node):
            inner.outer[name] = frame.outer.get(name, frame)
    inner.self_class = frame.self_class
    return inner


@lru_cache(maxsize=4096)
def _bound_outside(node: ast.expr) -> Sequence[str]:
    """The variables of the scope around a comprehension that `:=` binds in it."""
    return [part.target.id for part in descend(node) if isinstance(part, ast.NamedExpr)]


def _first(m: Machine, frame: Frame, generator: ast.comprehension) -> Value:
    """What a comprehension iterates first of all."""
    source = m.eval(frame, generator.iter)
    m.models.iterated(m, frame, generator.iter, source)
    return iterated(m, frame, generator.iter, source)


def _scope(
    m: Machine,
    frame: Frame,
    node: ast.expr,
    generators: list[ast.comprehension],
    source: Value,
) -> Frame:
    """The scope of a comprehension that iterates `source` first, in which its tests hold."""
    inner = scope_of(m, frame, node)
    for index, generator in enumerate(generators):
        if index:
            source = m.eval(inner, generator.iter)
            m.models.iterated(m, frame, generator.iter, source)
            source = iterated(m, frame, generator.iter, source)
        m.assign(inner, generator.target, element_of(m, source))
        inner.loop_names.append(names_in(generator.target))
        for test in generator.ifs:
            enter_branch(m, inner, test, m.eval(inner, test), True)
    return inner


def _each(m: Machine, inner: Frame, part: ast.expr, source: Value) -> Value:
    """What `part` is in each turn over `source`, of which nobody knows how many there are."""
    m.loop_depth += 1
    began, m.turn = m.turn, m.new_ident()
    take(m, element_of(m, source))
    try:
        return m.eval(inner, part)
    finally:
        m.loop_depth -= 1
        m.turn = began


def has_turn(m: Machine, frame: Frame, written: ast.AST) -> Value:
    """Whether a loop over ``range(n)`` has a turn; unknown for others."""
    if not isinstance(written, ast.Call) or len(written.args) != 1 or written.keywords:
        return UNKNOWN
    count = written.args[0]
    is_range = isinstance(written.func, ast.Name) and written.func.id == "range"
    if not is_range or not is_plain(m, count):
        return UNKNOWN
    one = Const(1, "int")
    return m.eval(frame, count).map(lambda atom: of(compare(ast.GtE(), atom, one)))


def names_in(target: ast.expr) -> frozenset[str]:
    """The names that a target of an assignment has."""
    return frozenset(item.id for item in descend(target) if isinstance(item, ast.Name))


def _comprehension(m: Machine, frame: Frame, node: ast.ListComp | ast.SetComp, kind: str) -> Value:
    return comprehended(m, frame, node, kind, _first(m, frame, node.generators[0]))


def comprehended(
    m: Machine,
    frame: Frame,
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp,
    kind: str,
    source: Value,
) -> Value:
    """What a comprehension makes of `source`, which it iterates first of all."""
    first = node.generators[0]
    known = known_items(source) if len(node.generators) == 1 else None
    if known is not None and 1 < len(known) <= 6:
        results, whole = _one_by_one(
            m, frame, node, first, known, lambda inner: m.eval(inner, node.elt)
        )
        if whole or not results:
            return adopted(m, node, items(kind, results))
        return adopted(m, node, sequence(join(results), kind))
    assumed = m.assumed.copy()
    test = has_turn(m, frame, first.iter)
    if not assume_test(m, test, True):
        return adopted(m, node, items(kind, []))
    mark = m.store.mark()
    inner = _scope(m, frame, node, node.generators, source)
    element = collected(m, frame, node, _each(m, inner, node.elt, source))
    element = of_any(element, element_keys(element_of(m, source)))
    doubt(m.store, mark)  # there may be no item
    m.state.assumed = assumed
    made = adopted(m, node, sequence(guarded(element, condition(m, test, True)), kind))
    whole = len(node.generators) == 1 and not first.ifs
    return as_long_as(m, source, made) if whole else made


def element_keys(element: Value) -> frozenset[Key]:
    """What stands for an element of something, or for its parts."""
    parts = [element]
    for packed in element.of(Items):
        parts += packed.items or ()
    return frozenset(
        atom.key for part in parts for atom in part.of(Unknown) if atom.key is not None
    )


def of_any(value: Value, keys: frozenset[Key]) -> Value:
    """`value` of one turn as any of the turns may have it, which `keys` stand for."""
    plain = Value(tuple(Choice(c.atom, without(c.when, keys)) for c in value.choices))
    return value if plain == value else join((plain,))


def collected(
    m: Machine, frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, element: Value
) -> Value:
    """An element of a comprehension, which may be one of the gradients that it collects."""
    if any(isinstance(part, Tensor) and part.ident == GRADIENT for part in inner_atoms(element)):
        place = m.site(frame, node)
        m.effect(frame, "gradient-collected", node.elt, "one gradient", target=element, place=place)
    return element


def _iterated(m: Machine, frame: Frame, node: ast.AST, atom: Atom) -> Value:
    def given(receiver: Atom, name: str, *args: Value) -> Value | None:
        found = m.find_in_class(receiver.cls, name) if isinstance(receiver, Instance) else None
        if found is None:
            return None
        return m.call(frame, node, m.bind(frame, node, found, receiver), Args(list(args)))

    if isinstance(atom, (Method, Thing)):
        return m.models.parts_of(m, atom) or of(atom)
    if not isinstance(atom, Instance):
        return of(atom)
    if atom.cls.what == "tuple":
        return items("tuple", parts_of(m, atom))
    iterator = given(atom, "__iter__") or given(atom, "__aiter__") or m.models.parts_of(m, atom)
    iterator = iterator or of(atom)

    def run(part: Atom) -> Value:
        if not isinstance(part, Instance):
            return of(part)
        number = unknown(("int", id(node)))
        element = (
            given(part, "__next__")
            or given(part, "__anext__")
            or (given(part, "__getitem__", number) if part == atom else None)
        )
        return sequence(element, "generator") if element is not None else of(part)

    return iterator.map(run)


def iterated(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with what iterating it gives in place of an object or generator of the project."""
    return m.iterated(frame, node, iterated_object(m, frame, node, value))


_ITERATED = (Instance, Method, Thing)
"""Of which a model may know what iterating them gives."""


def iterated_object(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with what iterating it gives in place of an object of the project."""
    if not any(isinstance(choice.atom, _ITERATED) for choice in value.choices):
        return value
    return value.map(lambda atom: _iterated(m, frame, node, atom))
