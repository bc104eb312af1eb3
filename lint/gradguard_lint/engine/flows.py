"""Lazy iterators over other iterables: ``map``, ``chain``, ``islice``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.state import State
from gradguard_lint.domain.values import Flow, Frame, Generator, Value, of
from gradguard_lint.engine.iteration import (
    ALL,
    SOME,
    consumed,
    is_next_known,
    next_item,
    remaining_items,
    run,
    set_consumed,
)
from gradguard_lint.engine.loops import UNROLLED, repeat
from gradguard_lint.engine.machine import Machine


def iterator(m: Machine, frame: Frame, node: ast.AST, value: Value) -> Generator:
    """An iterator over `value` that counts the items consumed."""
    only = value.only
    if isinstance(only, Generator):
        return only
    value = m.iterated(frame, node, value)
    scope = _scope(m, frame)

    def each(give: Callable[[Value], None]) -> None:
        now = m.filtered(value)
        known = known_items(now)
        if known is not None and len(known) <= UNROLLED:
            for item in known:
                if not m.dead:
                    give(item)
            return
        repeat(m, scope, node, node, now, give, own=lambda: lambda place: place[0] == scope.ident)
        m.place.exits.pop(scope.ident, None)

    def whole() -> Value:
        before, now = max(consumed(m, scope), 0), m.filtered(value)
        set_consumed(m, scope, ALL)
        known = known_items(now) if before else None
        return now if known is None else items("generator", known[before:])

    return Generator(Flow((), each, whole), scope)


def _scope(m: Machine, frame: Frame) -> Frame:
    return Frame(m.new_ident(), frame.module, frame, frame.function, born=frame.born)


def flow(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: Sequence[Value],
    item: Callable[[list[Value]], Value | None],
    whole: Callable[[list[Value]], Value],
) -> Value:
    """An iterator that consumes one item of each of `values` at a time.

    `item` computes the next item from these (None: there is none), `whole` the sequence of all.
    """
    sources = tuple(iterator(m, frame, node, value) for value in values)

    def each(give: Callable[[Value], None]) -> None:
        ends: list[State] = []

        def go(first: Value) -> None:
            row = [first]
            for source in sources[1:]:
                row.append(next_item(m, frame, node, source, ended=ends))
                if m.dead:
                    return
            made = item(row)
            if made is not None:
                give(made)

        run(m, frame, node, sources[0], go)
        if ends:
            m.meet([*ends, m.state])

    def at_once() -> Value:
        given = [remaining_items(m, frame, node, source) for source in sources]
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
    """An iterator over the items of each of `values` in turn."""
    sources = tuple(iterator(m, frame, node, value) for value in values)

    def each(give: Callable[[Value], None]) -> None:
        for source in sources:
            if not m.dead:
                run(m, frame, node, source, give)

    def at_once() -> Value:
        return whole([remaining_items(m, frame, node, source) for source in sources])

    return of(Generator(Flow(sources, each, at_once), _scope(m, frame)))


def first_items(m: Machine, frame: Frame, node: ast.AST, value: Value, count: int | None) -> Value:
    """An iterator over the first `count` items of `value`, or an unknown number."""
    source = iterator(m, frame, node, value)
    scope = _scope(m, frame)

    def each(give: Callable[[Value], None]) -> None:
        ends: list[State] = []

        def go(item: Value) -> None:
            count_now = consumed(m, scope) + 1 if is_counted else SOME
            set_consumed(m, scope, count_now)
            give(item)
            if m.dead:
                return
            if count_now == count:
                ends.append(m.leave())
            elif not is_counted:
                ends.append(m.state.copy())

        count_now = consumed(m, scope)
        is_counted = (
            count is not None and count <= UNROLLED and count_now >= 0 and is_next_known(m, source)
        )
        if count_now != count or not is_counted:
            run(m, frame, node, source, go)
        m.meet([*ends, m.state])

    def at_once() -> Value:
        given: list[Value] = []
        each(given.append)
        return items("generator", given)

    return of(Generator(Flow((source,), each, at_once), scope))
