"""Loops: iterations run until the state is stable, or the budget ends; the rest is unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial

from gradguard_lint.domain.conditions import (
    NONE,
    Assumed,
    Conditions,
    assume,
    forget,
    lasting_conditions,
    without,
)
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import as_uncertain, is_certain, known_items, lower_bound, sliced
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.domain.state import (
    Exits,
    Mark,
    Place,
    State,
    Store,
    differing_places,
    join_states,
    mark_uncertain,
    widen,
)
from gradguard_lint.domain.values import (
    UNKNOWN,
    Bound,
    Choice,
    Class,
    Const,
    Frame,
    Function,
    Generator,
    Instance,
    Items,
    Table,
    Unknown,
    Value,
    join,
    of,
)
from gradguard_lint.engine.branches import TURN, assume_test, enter_branch, is_plain
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.iteration import iterated_object, run
from gradguard_lint.engine.loop_bodies import carried_names, rewritten_items
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import stored_names
from gradguard_lint.engine.truth import compare, truth_of
from gradguard_lint.engine.turn_state import Loop
from gradguard_lint.engine.turns import consume
from gradguard_lint.engine.variables import HEAP
from pytest_gradguard.records import replace

TURNS = (3, 2, 1)
"""The most iterations of a loop, by nesting depth."""

SHORT = 60
"""The most expressions of an iteration that always runs again, to settle container contents."""

UNROLLED = 3
"""Up to this many known items, a loop is unrolled."""


def do_For(m: Machine, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    source = iterated_object(m, frame, node.iter, m.eval(frame, node.iter))
    rewritten = rewritten_items(node)
    old = _held(m, frame, rewritten)

    def go(item: Value) -> None:
        consume(m, item)
        m.assign(frame, node.target, item)
        if rewritten and m.eval(frame, rewritten[0].slice).constant is None:
            m.place.turns.rewriting.update(rewritten)
            for place, held in old.items():
                m.store[place] = held  # each iteration has another item, with its old value
        m.block(frame, node.body)
        m.place.turns.rewriting.difference_update(rewritten)

    own = partial(_own, frame, node)
    exits = repeat(m, frame, node, node.iter, source, go, names=stored_names(node), own=own)
    m.block(frame, node.orelse)
    m.meet([m.state, *exits.breaks])


def _held(m: Machine, frame: Frame, places: tuple[ast.Subscript, ...]) -> dict[Place, Value]:
    """The contents of the containers whose items are replaced."""
    old: dict[Place, Value] = {}
    for target in places:
        for atom in m.eval(frame, target.value).atoms:
            if isinstance(atom, (Items, Table)) and atom.ident:
                old[atom.ident, HEAP] = m.store.get((atom.ident, HEAP)) or of(atom)
    return old


def repeat(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    written: ast.AST,
    source: Value,
    go: Callable[[Value], None],
    *,
    names: frozenset[str] = frozenset(),
    own: Callable[[], Callable[[Place], bool]],
) -> Exits:
    """Run `go` for each item of `source`; the exits of the loop.

    Args:
        node: the loop.
        written: the node for `source`.
        names: the names that an iteration binds.
        own: returns a test for places that an iteration doesn't inherit from the previous one.
    """
    generator = source.only
    if not isinstance(generator, Generator):
        generator, source = None, m.iterated(frame, written, source)
    known = known_items(source)
    has_items = bool(known)
    if known is not None and len(known) > UNROLLED:
        known = None
    element = element_of(m, source)
    keys = element_keys(element) if known is None else frozenset({(TURN, m.site(frame, node))})
    with _looping(m, frame, node, names, keys) as exits:
        if generator is not None:
            mark = m.store.mark()
            _as_given(m, frame, written, generator, exits, go)
            mark_uncertain(m.store, mark)
        elif known is not None:
            for item in m.place.turns.iterate_items(known):
                assumed = _turn(m, exits, partial(go, item))
                assume(m.assumed, lasting_conditions(assumed, m.assumed))
        else:
            entry = m.state.copy()
            test = has_turn(m, frame, written)
            item, conditions = element, NONE

            def turn() -> None:
                nonlocal item, conditions
                if assume_test(m, test, True):
                    assume(m.assumed, conditions)
                    m.models.next_item(m, item)
                    go(item)
                    item, conditions = _after_the_first(m, source, element)
                else:
                    m.die()

            _turns(m, frame, turn, keys, own)
            if has_items or all(map(truth_of, test.atoms)):
                pass
            elif m.dead:
                m.state = entry  # no iteration ends normally: there may be none
            else:
                _or_no_turn(m, frame, entry.store)
    return exits


@contextmanager
def _looping(
    m: Machine, frame: Frame, node: ast.AST, names: frozenset[str], keys: frozenset[Key]
) -> Iterator[Exits]:
    """Set up the loop `node`, which binds `names` and whose element has `keys`."""
    exits, exits_around = Exits(), m.outcomes(frame).loops
    exits_around.append(exits)
    frame.loop_names.append(names)
    around = m.place.turns.loops
    m.place.turns.loops = (*around, Loop(m.site(frame, node), frame.function, keys))
    m.place.turns.depth += 1
    try:
        yield exits
    finally:
        m.place.turns.depth -= 1
        m.place.turns.loops = around
        frame.loop_names.pop()
        exits_around.pop()


def _or_no_turn(m: Machine, frame: Frame, before: Store) -> None:
    """Mark tensors stored only in the loop as uncertain: it may not run.

    A name that held other code `before` the loop may still refer to it.
    """
    for place in differing_places(before, m.store)[0]:
        old, new = before.get(place), m.store.get(place)
        if new is None or old is new:
            continue
        code = _code_of(old) if old is not None else set()
        if old is not None and code and not code >= _code_of(new):
            m.store[place] = join((new, old))
        elif not (place[0] == frame.ident if old is None else is_certain(old)):
            m.store[place] = as_uncertain(new)


def _code_of(value: Value) -> set[Hashable]:
    """The program's code, or module, that a call of `value` runs."""
    return {
        *(function.node for function in value.of(Function)),
        *(cls.node for cls in value.of(Class)),
        *(bound.function.node for bound in value.of(Bound)),
        *(instance.cls.node for instance in value.of(Instance)),
        *(thing.name for thing in value.things("model")),
    }


def _after_the_first(m: Machine, source: Value, element: Value) -> tuple[Value, Conditions]:
    """The item of `source` after the first iteration, and conditions on its counter: greater than
    the first."""
    only = source.only
    if isinstance(only, Items) and only.items:
        return m.filtered(join(only.items[1:])), NONE
    if isinstance(only, Items) and only.ends:
        return m.filtered(sliced(only, slice(1, None)).element), NONE
    if isinstance(only, Items) and only.kind in ("range", "generator"):
        number = (known_items(element) or (element,))[0].only
        key = number.key if isinstance(number, Unknown) else None
        least = lower_bound(key)
        if least is not None:
            return element, frozenset({(("lt", key, least + 1), False)})
    return element, NONE


def _as_given(
    m: Machine,
    frame: Frame,
    written: ast.AST,
    generator: Generator,
    exits: Exits,
    go: Callable[[Value], None],
) -> None:
    """Run an iteration for each ``yield`` of the generator, which continues in between."""
    modes = m.modes

    def turn(item: Value) -> None:
        keys = element_keys(item)
        *around, loop = m.place.turns.loops
        m.place.turns.loops = (*around, replace(loop, keys=keys))
        taken, mark, before = len(exits.breaks), m.store.mark(), m.assumed
        _turn(m, exits, partial(go, item))
        for state in (m.state, *exits.breaks[taken:]):
            _forget_turn(state, keys, mark, before)

    run(m, frame, written, generator, turn)
    for state in exits.breaks:
        state.modes = modes


def do_While(m: Machine, frame: Frame, node: ast.While) -> None:
    over: list[State] = []

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

    with _looping(m, frame, node, stored_names(node), frozenset()) as exits:
        _turns(m, frame, turn, frozenset(), partial(_own, frame, node))
        if not m.dead:  # the final test
            test = m.eval(frame, node.test)
            if enter_branch(m, frame, node.test, test, False):
                over.append(m.state)
    joined = join_states(over)
    if joined is None:
        m.die()
    else:
        m.state = joined
        m.block(frame, node.orelse)
    m.meet([m.state, *exits.breaks])


def _turn(m: Machine, exits: Exits, body: Callable[[], None]) -> Assumed:
    """Run one iteration, and join its normal exits.

    Returns its assumptions, which no longer hold.
    """
    if m.dead:
        return m.assumed
    assumed, modes = m.assumed.copy(), m.modes
    m.state = m.state.copy()
    (*around, loop), began = m.place.turns.loops, m.place.turns.began
    m.place.turns.began = m.new_ident()
    m.place.turns.loops = (*around, replace(loop, turn=m.place.turns.began))
    body()
    m.place.turns.began = began
    m.meet([m.state, *exits.continues])
    exits.continues.clear()
    at_end, m.state.assumed, m.state.modes = m.assumed, assumed, modes
    return at_end


def _turns(
    m: Machine,
    frame: Frame,
    body: Callable[[], None],
    keys: frozenset[Key],
    own: Callable[[], Callable[[Place], bool]],
) -> None:
    """Iterate until the state is stable; what still changes at the limit becomes unknown."""
    limit = (
        1
        if m.budget.used_up or m.budget.preparing
        else TURNS[min(m.place.turns.depth, len(TURNS)) - 1]
    )
    left = m.budget.left
    entry, modes, mark = m.state, m.modes, m.store.mark()
    exits = m.outcomes(frame).loops[-1]
    ends: list[State] = []
    for turn in range(1, max(limit, 2) + 1):
        before, newest = m.state, m.caches.newest_ident
        calls, moments = len(m.program.calls), len(m.facts.pool_starts)
        _turn(m, exits, body)
        if m.dead:
            break
        _forget_turn(m.state, keys, mark, entry.assumed)
        starts = len(m.facts.pool_starts) > moments or any(
            call.kind == PROCESS for call in m.program.calls[calls:]
        )
        settled = _settled(before, m.state, newest, own(), starts=starts)
        ends.append(m.state)
        if settled:
            break
        if turn >= limit and (turn > 1 or left - m.budget.left > SHORT):
            if m.budget.used_up:
                m.leave_unfinished(frame)
            widen((ends[-2] if len(ends) > 1 else entry).store, ends[-1].store)
            break
    for state in exits.breaks:
        state.modes = modes
        _forget_turn(state, keys, mark, entry.assumed)
    if ends:
        last = m.state
        m.meet([*ends[:-1], last] if not last.dead else ends)


def _own(frame: Frame, node: ast.For | ast.AsyncFor | ast.While) -> Callable[[Place], bool]:
    """A test for variables that each iteration binds before reading."""
    if frame.shared:  # other code may read them, too
        return lambda place: False
    names = carried_names(node)
    return lambda place: place[0] == frame.ident and place[1] not in names


def _settled(
    before: State, after: State, newest: int, own: Callable[[Place], bool], *, starts: bool
) -> bool:
    """Whether another iteration would have the same end state.

    Args:
        before: the state at the start of an iteration.
        after: the state at its end.
        newest: the last identity at the start; each iteration creates later ones.
        own: a test for places not inherited from the previous iteration.
        starts: whether the iteration starts processes on any path.
    """
    if starts and after.past.keys() - before.past.keys():
        return False  # the next iteration's processes inherit what this one did
    old, new = before.store, after.store
    for place in differing_places(old, new)[0]:
        one, other = old.get(place), new.get(place)
        if one is other or place[0] > newest or own(place):
            continue
        if one is None or other is None or set(other.atoms) - set(one.atoms):
            return False
    return True


def _forget_turn(state: State, keys: frozenset[Key], mark: Mark | None, before: Assumed) -> None:
    """Drop assumptions about this iteration's element.

    Args:
        mark: the mark at the start of the iteration.
        before: the assumptions then.
    """
    if not keys:
        return
    for place in state.store.since(mark):
        value = state.store.get(place)
        if value is not None and any(choice.when for choice in value.choices):
            plain = of_any(value, keys)
            if plain is not value:
                state.store[place] = plain
    for event, when in state.past.items():
        state.past[event] = without(when, keys)
    forget(state.assumed, keys, before)


def has_turn(m: Machine, frame: Frame, written: ast.AST) -> Value:
    """Whether a loop over ``range(n)`` runs at least once; unknown for others."""
    if not isinstance(written, ast.Call) or len(written.args) != 1 or written.keywords:
        return UNKNOWN
    count = written.args[0]
    is_range = isinstance(written.func, ast.Name) and written.func.id == "range"
    if not is_range or not is_plain(m, count):
        return UNKNOWN
    one = Const(1, "int")
    return m.eval(frame, count).map(lambda atom: of(compare(ast.GtE(), atom, one)))


def element_keys(element: Value) -> frozenset[Key]:
    """The keys of an element or its parts."""
    parts = [element]
    for packed in element.of(Items):
        parts += packed.items or ()
    return frozenset(
        atom.key for part in parts for atom in part.of(Unknown) if atom.key is not None
    )


def of_any(value: Value, keys: frozenset[Key]) -> Value:
    """`value` without conditions on the element keys `keys` of one iteration."""
    plain = Value(tuple(Choice(c.atom, without(c.when, keys)) for c in value.choices))
    return value if plain == value else join((plain,))
