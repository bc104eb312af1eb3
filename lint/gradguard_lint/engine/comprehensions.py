"""Comprehensions, and generator expressions, which run when iterated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.shapes import inner as inner_atoms
from gradguard_lint.domain.shapes import items, known_items, sequence
from gradguard_lint.domain.state import mark_uncertain
from gradguard_lint.domain.values import (
    GRADIENT,
    Flow,
    Frame,
    Generator,
    Tensor,
    Value,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.branches import (
    assume_test,
    condition,
    definite,
    enter_branch,
    fork,
    is_plain,
)
from gradguard_lint.engine.containers import element_of, of_pairs, with_identity, with_length_of
from gradguard_lint.engine.flows import iterator
from gradguard_lint.engine.iteration import iterated_object, remaining_items, run
from gradguard_lint.engine.loops import element_keys, has_turn, of_any
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import descend, stored_names
from gradguard_lint.engine.turns import consume

UNROLLED = 6
"""Up to this many known items, a comprehension is unrolled."""

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def on_ListComp(m: Machine, frame: Frame, node: ast.ListComp) -> Value:
    return _collected(m, frame, node, "list", _first(m, frame, node))


def on_SetComp(m: Machine, frame: Frame, node: ast.SetComp) -> Value:
    return _collected(m, frame, node, "set", _first(m, frame, node))


def on_DictComp(m: Machine, frame: Frame, node: ast.DictComp) -> Value:
    pairs = _collected(m, frame, node, "tuple", _first(m, frame, node))
    return with_identity(m, node, of_pairs(pairs))


def on_GeneratorExp(m: Machine, frame: Frame, node: ast.GeneratorExp) -> Value:
    """A lazy expression: only the first iterable is evaluated immediately."""
    first = node.generators[0].iter
    base = iterator(m, frame, first, iterated_object(m, frame, first, m.eval(frame, first)))
    inner = _scope(m, frame, node)
    lenders = _around(frame)
    for scope in lenders:
        scope.lent.add(inner.ident)

    def each(give: Callable[[Value], None]) -> None:
        def turn(number: int, item: Value) -> None:
            m.assign(inner, node.generators[number].target, item)
            test(number, 0)

        def test(number: int, done: int) -> None:
            tests = node.generators[number].ifs
            if done < len(tests):
                passed = partial(test, number, done + 1)
                asked = tests[done]
                fork(m, inner, asked, m.eval(inner, asked), (passed, lambda: None))
            elif number + 1 < len(node.generators):
                written = node.generators[number + 1].iter
                value = iterated_object(m, inner, written, m.eval(inner, written))
                source = iterator(m, inner, written, value)
                run(m, inner, written, source, partial(turn, number + 1))
            else:
                element = _element(m, inner, node)
                _note_gradients(m, frame, node, element)
                give(element)

        inner.loop_names = [stored_names(generator.target) for generator in node.generators]
        run(m, frame, first, base, partial(turn, 0))

    def whole() -> Value:
        given = remaining_items(m, frame, first, base)
        for scope in lenders:
            scope.lent.discard(inner.ident)
        if known_items(given) == ():
            return items("generator", ())
        return _collected(m, frame, node, "generator", given)

    return of(Generator(Flow((base,), each, whole), inner))


def _around(frame: Frame) -> list[Frame]:
    """The enclosing scopes within one function."""
    found: list[Frame] = []
    scope: Frame | None = frame if frame.function is not None else None
    while scope is not None and scope.function is frame.function:
        found.append(scope)
        scope = scope.parent
    return found


def _first(m: Machine, frame: Frame, node: Comprehension) -> Value:
    """The first iterable of a comprehension."""
    return _sequence(m, frame, node.generators[0].iter)


def _sequence(m: Machine, frame: Frame, written: ast.expr) -> Value:
    return m.iterated(frame, written, iterated_object(m, frame, written, m.eval(frame, written)))


def _collected(m: Machine, frame: Frame, node: Comprehension, kind: str, source: Value) -> Value:
    """The results of a comprehension for all items of `source`, its first iterable."""
    first = node.generators[0]
    is_whole = len(node.generators) == 1 and not first.ifs
    known = known_items(source) if len(node.generators) == 1 else None
    if known and len(known) <= UNROLLED:
        turns = m.place.turns.iterate_items(known)
        made = [_turn(m, frame, node, item, several=len(known) > 1) for item in turns]
        results = [element for element, _ in made if element is not None]
        if all(certain for _, certain in made) or not results:
            return with_identity(m, node, items(kind, results))
        return with_identity(m, node, sequence(join(results), kind))
    assumed = m.assumed.copy()
    test = has_turn(m, frame, first.iter)
    if not assume_test(m, test, True):
        return with_identity(m, node, items(kind, []))
    mark = m.store.mark()
    element = _turn(m, frame, node, element_of(m, source), several=True)[0]
    mark_uncertain(m.store, mark)  # there may be no item
    m.state.assumed = assumed
    if element is None:
        return with_identity(m, node, items(kind, []))
    if not isinstance(node, ast.DictComp):
        _note_gradients(m, frame, node, element)
    element = of_any(element, element_keys(element_of(m, source)))
    made_of_all = with_identity(m, node, sequence(guarded(element, condition(m, test, True)), kind))
    return with_length_of(m, source, made_of_all) if is_whole else made_of_all


def _turn(
    m: Machine, frame: Frame, node: Comprehension, item: Value, *, several: bool
) -> tuple[Value | None, bool]:
    """The element for `item` (None if it is filtered out), and whether that is certain; `several`:
    this is one of several iterations."""
    began, assumed = m.place.turns.began, m.state.assumed
    m.place.turns.depth += several
    if several:
        m.place.turns.began = m.new_ident()
        consume(m, item)
    inner, certain = _scope(m, frame, node), True
    m.state.assumed = assumed.copy()
    try:
        for number, generator in enumerate(node.generators):
            if number:
                item = element_of(m, _sequence(m, inner, generator.iter))
            m.assign(inner, generator.target, item)
            inner.loop_names.append(stored_names(generator.target))
            for test in generator.ifs:
                value = m.eval(inner, test)
                certain = certain and definite(value) is not None
                if not enter_branch(m, inner, test, value, True):
                    return None, certain
        return _element(m, inner, node), certain
    finally:
        m.place.turns.depth -= several
        m.place.turns.began, m.state.assumed = began, assumed


def _element(m: Machine, inner: Frame, node: Comprehension) -> Value:
    """An element of a comprehension; a pair for dicts."""
    if isinstance(node, ast.DictComp):
        return items("tuple", [m.eval(inner, node.key), m.eval(inner, node.value)])
    return m.eval(inner, node.elt)


def _note_gradients(m: Machine, frame: Frame, node: Comprehension, element: Value) -> None:
    """Record a comprehension that collects gradients (GG404)."""
    if any(isinstance(part, Tensor) and part.ident == GRADIENT for part in inner_atoms(element)):
        part = node.value if isinstance(node, ast.DictComp) else node.elt
        place = m.site(frame, node)
        collects = LibraryUse("collects gradients", (element,), place=place)
        m.effect(frame, part, "one gradient", collects)


def _scope(m: Machine, frame: Frame, node: ast.expr) -> Frame:
    inner = Frame(m.new_ident(), frame.module, frame, frame.function, born=frame.born)
    inner.outer = dict(frame.outer)
    if not is_plain(m, node):
        for name in _bound_outside(node):
            inner.outer[name] = frame.outer.get(name, frame)
    inner.self_class = frame.self_class
    return inner


@lru_cache(maxsize=4096)
def _bound_outside(node: ast.expr) -> Sequence[str]:
    """Variables of the enclosing scope that `:=` binds in a comprehension."""
    return [part.target.id for part in descend(node) if isinstance(part, ast.NamedExpr)]
