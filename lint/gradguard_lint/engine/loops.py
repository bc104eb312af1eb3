"""Loops: turns are run until nothing new comes of one more, or the budget says "unknown"."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradguard_lint.domain.conditions import Key, without
from gradguard_lint.domain.state import Exits, State, join_states, widened
from gradguard_lint.domain.values import (
    Choice,
    Frame,
    Items,
    Unknown,
    Value,
    join,
)
from gradguard_lint.engine.branches import enter_branch
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.tree import stored_names

TURNS = (3, 2, 1)
"""How many turns are run, by how deep the loop is in others."""

UNROLLED = 3
"""Up to this many known items, a loop is run item by item."""


def do_For(m: Machine, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    source = m.eval(frame, node.iter)
    m.models.iterated(m, frame, node.iter, source)
    only = source.only
    known: tuple[Value, ...] | None = None
    if isinstance(only, Items) and only.items is not None and len(only.items) <= UNROLLED:
        known = only.items
    exits = Exits()
    m.outcomes(frame).loops.append(exits)
    frame.loop_names.append(_stored(m, node))
    m.loops.append(m.site(frame, node))
    m.turns.append(0)
    element = m.element(source)
    m.elements.append((frame.function, _element_keys(element)))
    m.loop_depth += 1
    try:
        if known is not None:
            for item in known:
                _turn(m, exits, _bound(m, frame, node, item))
        else:
            entry = m.state.copy()
            _turns(m, exits, _bound(m, frame, node, element), _element_keys(element))
            if m.dead:
                m.state = entry  # no turn comes to its end: there may be none
    finally:
        m.loop_depth -= 1
        m.loops.pop()
        m.turns.pop()
        m.elements.pop()
        frame.loop_names.pop()
        m.outcomes(frame).loops.pop()
    m.block(frame, node.orelse)
    m.meet([m.state, *exits.breaks])


def _bound(
    m: Machine, frame: Frame, node: ast.For | ast.AsyncFor, item: Value
) -> Callable[[], None]:
    def go() -> None:
        m.assign(frame, node.target, item)
        m.block(frame, node.body)

    return go


def do_While(m: Machine, frame: Frame, node: ast.While) -> None:
    exits = Exits()
    over: list[State] = []
    m.outcomes(frame).loops.append(exits)
    frame.loop_names.append(_stored(m, node))
    m.loops.append(m.site(frame, node))
    m.turns.append(0)
    m.elements.append((frame.function, ()))
    m.loop_depth += 1

    def turn() -> None:
        test = m.eval(frame, node.test)
        if m.dead:
            return
        end = m.state.copy()
        inside = m.state
        m.state = end
        if enter_branch(m, frame, node.test, test, False):
            over.append(m.state)
        m.state = inside
        if enter_branch(m, frame, node.test, test, True):
            m.block(frame, node.body)
        else:
            m.die()

    try:
        _turns(m, exits, turn, ())
        if not m.dead:  # once more to the test
            test = m.eval(frame, node.test)
            if enter_branch(m, frame, node.test, test, False):
                over.append(m.state)
    finally:
        m.loop_depth -= 1
        m.loops.pop()
        m.turns.pop()
        m.elements.pop()
        frame.loop_names.pop()
        m.outcomes(frame).loops.pop()
    joined = join_states(over)
    if joined is None:
        m.die()
    else:
        m.state = joined
        m.block(frame, node.orelse)
    m.meet([m.state, *exits.breaks])


def _turn(m: Machine, exits: Exits, body: Callable[[], None]) -> None:
    """One turn; afterwards the state is that of its end, whichever way it came there."""
    if m.dead:
        return
    assumed, modes = dict(m.assumed), m.modes
    m.state = m.state.copy()
    m.turns[-1] = m.new_ident()
    body()
    m.meet([m.state, *exits.continues])
    exits.continues.clear()
    m.state.assumed, m.state.modes = assumed, modes


def _turns(m: Machine, exits: Exits, body: Callable[[], None], keys: tuple[Key, ...]) -> None:
    """Turns until one more changes nothing; what still changes then may be anything."""
    limit = 1 if m.tired else TURNS[min(m.loop_depth, len(TURNS)) - 1]
    entry, modes = m.state, m.modes
    ends: list[State] = []
    for _ in range(limit):
        before = m.state
        _turn(m, exits, body)
        if m.dead:
            break
        _forget_turn(m.state, keys)
        settled = _settled(before, m.state)
        ends.append(m.state)
        if settled:
            break
    else:
        widened((ends[-2] if len(ends) > 1 else entry).store, ends[-1].store)
    for state in exits.breaks:
        state.modes = modes
        _forget_turn(state, keys)
    if ends:
        last = m.state
        m.meet([*ends[:-1], last] if not last.dead else ends)


def _settled(before: State, after: State) -> bool:
    """Whether a turn changed nothing."""
    old, new = before.store, after.store
    for place in new.changed:
        one, other = old.get(place), new.get(place)
        if one is not other and (one is None or other is None or set(other.atoms) - set(one.atoms)):
            return False
    return True


def _forget_turn(state: State, keys: tuple[Key, ...]) -> None:
    """What was assumed of this turn's element says nothing of the next one's."""
    for key in keys:
        for place in state.store.changed:
            value = state.store.get(place)
            if value is not None and any(choice.when for choice in value.choices):
                plain = Value(tuple(Choice(c.atom, without(c.when, key)) for c in value.choices))
                if plain != value:
                    dict.__setitem__(state.store, place, join((plain,)))
        for event, when in list(state.past.items()):
            if when:
                state.past[event] = without(when, key)


def _element_keys(element: Value) -> tuple[Key, ...]:
    parts = [element]
    for packed in element.of(Items):
        parts += packed.items or ()
    return tuple(atom.key for part in parts for atom in part.of(Unknown) if atom.key is not None)


def _stored(m: Machine, node: ast.AST) -> frozenset[str]:
    """The names that a loop binds, in its head and in its body."""
    names = m.stored_in.get(node)
    if names is None:
        names = m.stored_in[node] = stored_names(node)
    return names
