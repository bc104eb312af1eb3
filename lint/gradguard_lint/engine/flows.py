"""What makes items of those of other iterables, one by one, as it is iterated itself."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial

from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.state import Place, State
from gradguard_lint.domain.values import Flow, Frame, Generator, Value, constant, of
from gradguard_lint.engine.branches import fork
from gradguard_lint.engine.comprehensions import (
    collected,
    comprehended,
    iterated_object,
    names_in,
    scope_of,
)
from gradguard_lint.engine.generators import ALL, SOME, TAKEN, certain, exhausted, following, run
from gradguard_lint.engine.loops import UNROLLED, repeat
from gradguard_lint.engine.machine import Machine


def lazy(values: Sequence[Value]) -> bool:
    """Whether there is among `values` what does something as it is iterated."""
    return any(isinstance(choice.atom, Generator) for value in values for choice in value.choices)


def iterator(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Generator:
    """What iterates `value`, and knows how far it has come."""
    only = value.only
    if isinstance(only, Generator):
        return only
    value = m.iterated(frame, node, value)
    scope = _scope(m, frame)

    def whole() -> Value:
        taken, now = _number(m, scope), m.filtered(value)
        m.store[scope.ident, TAKEN] = constant(ALL)
        known = known_items(now)
        if taken == ALL:
            return items("generator", ())
        return items("generator", known[taken:]) if taken > 0 and known is not None else now

    def each(give: Callable[[Value], None]) -> None:
        taken, now = _number(m, scope), m.filtered(value)
        known = known_items(now)

        def go(item: Value) -> None:
            m.store[scope.ident, TAKEN] = constant(SOME)
            give(item)

        def own(place: Place) -> bool:
            return place[0] == scope.ident

        if taken == ALL:
            return
        if known is not None and len(known) <= UNROLLED:
            for number in range(max(taken, 0), len(known)):
                if not m.dead:
                    m.store[scope.ident, TAKEN] = constant(number + 1)
                    give(known[number])
        else:
            repeat(m, scope, node, node, now, go, own=lambda: own)
            m.place.exits.pop(scope.ident, None)
        if not m.dead:
            m.store[scope.ident, TAKEN] = constant(ALL)

    return Generator(Flow((), each, whole), scope)


def _scope(m: Machine, frame: Frame) -> Frame:
    return Frame(m.new_ident(), frame.module, frame, frame.function, born=frame.born)


def _number(m: Machine, scope: Frame) -> int:
    """How many items were taken."""
    number = (m.store.get((scope.ident, TAKEN)) or constant(0)).constant
    return number if isinstance(number, int) else SOME


def flow(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: Sequence[Value],
    item: Callable[[list[Value]], Value | None],
    whole: Callable[[list[Value]], Value],
) -> Value:
    """What takes an item of each of `values` at a time, and gives what `item` makes of them (None:
    nothing); `whole`: what it makes of all."""
    sources = tuple(iterator(m, frame, node, value) for value in values)

    def each(give: Callable[[Value], None]) -> None:
        ends: list[State] = []

        def go(first: Value) -> None:
            row = [first]
            for source in sources[1:]:
                row.append(following(m, frame, node, source, ended=ends))
                if m.dead:
                    return
            made = item(row)
            if made is not None:
                give(made)

        run(m, frame, node, sources[0], go)
        if ends:
            m.meet([*ends, m.state])

    def at_once() -> Value:
        given = [exhausted(m, frame, node, source) for source in sources]
        if any(known_items(value) == () for value in given):
            return items("generator", ())
        return whole(given)

    return of(Generator(Flow(sources, each, at_once), _scope(m, frame)))


def chained(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: Sequence[Value],
    whole: Callable[[list[Value]], Value],
) -> Value:
    """What gives the items of `values` one after the other."""
    sources = tuple(iterator(m, frame, node, value) for value in values)

    def each(give: Callable[[Value], None]) -> None:
        for source in sources:
            if not m.dead:
                run(m, frame, node, source, give)

    def at_once() -> Value:
        return whole([exhausted(m, frame, node, source) for source in sources])

    return of(Generator(Flow(sources, each, at_once), _scope(m, frame)))


def cut(m: Machine, frame: Frame, node: ast.AST, value: Value, count: int | None) -> Value:
    """What gives the first items of `value`: `count` of them, or nobody knows how many."""
    source = iterator(m, frame, node, value)
    scope = _scope(m, frame)

    def each(give: Callable[[Value], None]) -> None:
        ends: list[State] = []

        def go(item: Value) -> None:
            taken = _number(m, scope) + 1 if told else SOME
            m.store[scope.ident, TAKEN] = constant(taken)
            give(item)
            if m.dead:
                return
            if taken == count:
                ends.append(m.leave())
            elif not told:
                ends.append(m.state.copy())

        taken = _number(m, scope)
        told = count is not None and count <= UNROLLED and taken >= 0 and certain(m, source)
        if taken != count or not told:
            run(m, frame, node, source, go)
        m.meet([*ends, m.state])

    def at_once() -> Value:
        given: list[Value] = []
        each(given.append)
        return items("generator", given)

    return of(Generator(Flow((source,), each, at_once), scope))


def on_GeneratorExp(m: Machine, frame: Frame, node: ast.GeneratorExp) -> Value:
    """The first iterable is evaluated at once, all else as the expression is iterated."""
    first = node.generators[0]
    source = m.eval(frame, first.iter)
    m.models.iterated(m, frame, first.iter, source)
    base = iterator(m, frame, first.iter, iterated_object(m, frame, first.iter, source))
    inner = scope_of(m, frame, node)
    lenders = _around(frame)
    for scope in lenders:
        scope.lent.add(inner.ident)

    def each(give: Callable[[Value], None]) -> None:
        def turn(number: int, item: Value) -> None:
            m.assign(inner, node.generators[number].target, item)
            test(number, 0)

        def test(number: int, done: int) -> None:
            tests = node.generators[number].ifs
            if done == len(tests):
                deeper(number + 1)
                return
            passed = partial(test, number, done + 1)
            asked = tests[done]
            fork(m, inner, asked, m.eval(inner, asked), (passed, lambda: None))

        def deeper(number: int) -> None:
            if number == len(node.generators):
                give(collected(m, frame, node, m.eval(inner, node.elt)))
                return
            written = node.generators[number].iter
            value = m.eval(inner, written)
            m.models.iterated(m, inner, written, value)
            value = iterated_object(m, inner, written, value)
            run(m, inner, written, iterator(m, inner, written, value), partial(turn, number))

        inner.loop_names = [names_in(generator.target) for generator in node.generators]
        run(m, frame, first.iter, base, partial(turn, 0))

    def whole() -> Value:
        given = exhausted(m, frame, first.iter, base)
        for scope in lenders:
            scope.lent.discard(inner.ident)
        if known_items(given) == ():
            return items("generator", ())
        return comprehended(m, frame, node, "generator", given)

    return of(Generator(Flow((base,), each, whole), inner))


def _around(frame: Frame) -> list[Frame]:
    """The scopes of the function that `frame` is in."""
    found: list[Frame] = []
    scope: Frame | None = frame if frame.function is not None else None
    while scope is not None and scope.function is frame.function:
        found.append(scope)
        scope = scope.parent
    return found
