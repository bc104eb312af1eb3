"""Tasks for workers: their functions, arguments, and source text."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import items_by_position
from gradguard_lint.domain.values import RANK, TaskCall, Unknown, Value
from gradguard_lint.engine.arguments import SOME, is_tuple
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.iteration import iterated
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.quoting import (
    item_text,
    part_text,
    text_of,
    unpacked_text,
    unpacked_texts,
)
from gradguard_lint.engine.stub_calls import Caller
from gradguard_lint.engine.turns import bound_per_turn, in_loop, made_in_turn, varies
from pytest_gradguard.records import replace


def task_given(m: Machine, caller: Caller, function: Value, given: Args) -> TaskCall:
    """The task that calls `function` with the arguments `given`."""
    values = list(given.positional)
    unplaced, unplaced_name = None, ""
    if given.rest is not None and not given.rest.is_unknown:
        unplaced, unplaced_name = len(values), unpacked_text(caller.node)
        values += [given.rest] * SOME
    turns = bound_per_turn(caller.frame)
    private = {
        place
        for place, value in enumerate((function, *values), -1)
        if _differs(caller, value, turns) or made_in_turn(m, value) or _is_rank(value)
    }
    return TaskCall(
        function,
        tuple(values),
        given.pairs(),
        m.site(caller.frame, caller.node),
        frozenset(private),
        frozenset(name for name, value in given.pairs() if _differs(caller, value, turns)),
        names=tuple(_text(caller, value) for value in given.positional),
        repeated=in_loop(m, caller.frame),
        unplaced=unplaced,
        unplaced_name=unplaced_name,
        exact=given.written,
    )


def tasks_of_each(
    m: Machine, caller: Caller, function: Value, iterables: tuple[Value, ...]
) -> TaskCall:
    """The tasks that call `function` with an item of each of `iterables`."""
    sources = [_source(caller, it) for it in iterables]
    values = tuple(element_of(m, iterated(m, caller.frame, caller.node, it)) for it in iterables)
    return _of_items(m, caller, function, values, tuple(map(item_text, sources)), exact=True)


def tasks_of_tuples(
    m: Machine, caller: Caller, function: Value, tuples: Value, *, others: bool
) -> TaskCall:
    """The tasks that call `function` with the items of each of `tuples`; with `others`, items that
    are no tuples are passed as they are."""
    source = _source(caller, tuples)
    element = element_of(m, iterated(m, caller.frame, caller.node, tuples))
    values = tuple(items_by_position(element) or ())
    if others and not values:
        values = (element,)
    names = unpacked_texts(source, len(values))
    if not values and not element.is_unknown:
        name = part_text(source)
        values = (element_of(m, element),) * 4
        task = _of_items(m, caller, function, values, (), exact=False)
        return replace(task, unplaced=0, unplaced_name=name)
    exact = not others and is_tuple(element)
    return _of_items(m, caller, function, values, names, exact=exact)


def _of_items(
    m: Machine,
    caller: Caller,
    function: Value,
    values: tuple[Value, ...],
    names: tuple[str, ...],
    *,
    exact: bool,
) -> TaskCall:
    private = frozenset(range(len(values)))
    site = m.site(caller.frame, caller.node)
    return TaskCall(function, values, (), site, private, names=names, exact=exact)


def _source(caller: Caller, value: Value) -> ast.expr | None:
    """The expression of the program for `value`."""
    found = caller.source(value)
    return found[0] if found is not None and found[1] else None


def _text(caller: Caller, value: Value) -> str:
    source = _source(caller, value)
    return "" if source is None or isinstance(source, ast.Starred) else text_of(source)


def _differs(caller: Caller, value: Value, turns: frozenset[str]) -> bool:
    """Whether the expression of `value` differs between loop iterations, which bind `turns`."""
    found = caller.source(value) if turns else None
    return found is not None and varies(found[0], turns | found[2])


def _is_rank(value: Value) -> bool:
    return isinstance(value.only, Unknown) and value.only.key == RANK
