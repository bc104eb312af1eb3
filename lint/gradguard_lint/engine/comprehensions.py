"""Comprehensions, and what iterating an object of the project gives."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradguard_lint.domain.shapes import ABSENT, items, known_items, sequence
from gradguard_lint.domain.shapes import inner as inner_atoms
from gradguard_lint.domain.values import (
    GRADIENT,
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Instance,
    Table,
    Tensor,
    Value,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.branches import definite, enter_branch, is_plain
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend


def on_ListComp(m: Machine, frame: Frame, node: ast.ListComp) -> Value:
    return _comprehension(m, frame, node, "list")


def on_SetComp(m: Machine, frame: Frame, node: ast.SetComp) -> Value:
    return _comprehension(m, frame, node, "set")


def on_GeneratorExp(m: Machine, frame: Frame, node: ast.GeneratorExp) -> Value:
    return _comprehension(m, frame, node, "generator")


def on_DictComp(m: Machine, frame: Frame, node: ast.DictComp) -> Value:
    pairs: list[tuple[Value, Value]] = []

    def pair(inner: Frame) -> Value:
        pairs.append((m.eval(inner, node.key), m.eval(inner, node.value)))
        return UNKNOWN

    source = m.eval(frame, node.generators[0].iter) if len(node.generators) == 1 else UNKNOWN
    known = known_items(source)
    if known is not None and len(known) <= 6:
        _, whole = _one_by_one(m, frame, node, node.generators[0], known, pair)
        if whole and all(isinstance(key.only, Const) for key, _ in pairs):
            entries = {key.constant: value for key, value in pairs}
            return m.adopted(node, of(Table(tuple(entries.items()), ABSENT)))
        if pairs:
            keys, values = zip(*pairs, strict=True)
            return m.adopted(node, of(Table((), join(values), join(keys))))
    inner = _scope(m, frame, node, node.generators)
    key = m.eval(inner, node.key)
    value = m.eval(inner, node.value)
    return m.adopted(node, of(Table((), value, key)))


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
    for item in known:
        inner = _inner(m, frame, node)
        m.assign(inner, generator.target, item)
        inner.loop_names.append(_names(generator.target))
        before = m.state.assumed
        m.state.assumed = dict(before)
        for test in generator.ifs:
            value = m.eval(inner, test)
            whole = whole and definite(value) is not None
            if not enter_branch(m, inner, test, value, True):
                break
        else:
            results.append(element(inner))
        m.state.assumed = before
    return results, whole


def _inner(m: Machine, frame: Frame, node: ast.expr) -> Frame:
    inner = Frame(m.new_ident(), frame.module, frame, frame.function, born=frame.born)
    inner.outer = dict(frame.outer)
    if not is_plain(m, node):
        for part in descend(node):
            if isinstance(part, ast.NamedExpr):
                inner.outer[part.target.id] = frame.outer.get(part.target.id, frame)
    inner.self_class = frame.self_class
    return inner


def _scope(m: Machine, frame: Frame, node: ast.expr, generators: list[ast.comprehension]) -> Frame:
    """The scope of a comprehension, in which its tests hold."""
    inner = _inner(m, frame, node)
    for index, generator in enumerate(generators):
        source = m.eval(frame if index == 0 else inner, generator.iter)
        m.models.iterated(m, frame, generator.iter, source)
        source = iterated(m, frame, generator.iter, source)
        m.assign(inner, generator.target, m.element(source))
        inner.loop_names.append(_names(generator.target))
        for test in generator.ifs:
            enter_branch(m, inner, test, m.eval(inner, test), True)
    return inner


def _names(target: ast.expr) -> frozenset[str]:
    return frozenset(item.id for item in descend(target) if isinstance(item, ast.Name))


def _comprehension(
    m: Machine, frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, kind: str
) -> Value:
    first = node.generators[0]
    source = m.eval(frame, first.iter) if len(node.generators) == 1 else UNKNOWN
    known = known_items(source)
    if known is not None and 1 < len(known) <= 6:
        results, whole = _one_by_one(
            m, frame, node, first, known, lambda inner: m.eval(inner, node.elt)
        )
        if whole or not results:
            return m.adopted(node, items(kind, results))
        return m.adopted(node, sequence(join(results), kind))
    assumed = dict(m.assumed)
    inner = _scope(m, frame, node, node.generators)
    element = m.eval(inner, node.elt)
    m.state.assumed = assumed
    if any(isinstance(part, Tensor) and part.ident == GRADIENT for part in inner_atoms(element)):
        place = m.site(frame, node)
        m.effect(frame, "gradient-collected", node.elt, "one gradient", target=element, place=place)
    return m.adopted(node, sequence(element, kind))


def _iterated(m: Machine, frame: Frame, node: ast.AST, atom: Atom) -> Value:
    def given(receiver: Atom, name: str, *args: Value) -> Value | None:
        found = m.find_in_class(receiver.cls, name) if isinstance(receiver, Instance) else None
        if found is None:
            return None
        return m.call(frame, node, m.bind(frame, node, found, receiver), Args(list(args)))

    if not isinstance(atom, Instance):
        return of(atom)
    if atom.cls.what == "tuple":
        return items("tuple", m.parts_of(atom))
    iterator = given(atom, "__iter__") or given(atom, "__aiter__") or of(atom)

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


def iterated_object(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Value:
    """`value`, with what iterating it gives in place of an object of the project."""
    if not any(isinstance(choice.atom, Instance) for choice in value.choices):
        return value
    return value.map(lambda atom: _iterated(m, frame, node, atom))
