"""Starts of workers, and the progress of concurrent tasks."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Effect, ParallelCall, Progress, Waited
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.domain.state import Moment, join_pasts
from gradguard_lint.domain.values import UNKNOWN, Const, constant, of, unknown
from gradguard_lint.engine.machine import FINISHED, Machine


def record_pool_start(m: Machine, ident: int) -> None:
    """Record that the pool `ident` starts its workers here."""
    m.facts.pool_starts.append(Moment(dict(m.state.past), m.modes))
    m.store[ident, "<started>"] = of(Const(len(m.facts.pool_starts) - 1, "int"))


def forget_start(m: Machine, ident: int) -> None:
    """Record that the pool `ident` is created again, without workers yet."""
    m.store[ident, "<started>"] = UNKNOWN


def moment_of(m: Machine, ident: int) -> Moment | None:
    """The moment at which `ident` started its workers; None if it hasn't, or that is unknown.

    Of several possible moments, the events of all are joined.
    """
    number = m.read(ident, "<started>")
    found: Moment | None = None
    for choice in number.choices if number is not None else ():
        if not isinstance(choice.atom, Const) or not isinstance(choice.atom.value, int):
            return None
        then = m.facts.pool_starts[choice.atom.value]
        past, modes = then.past, then.modes
        if choice.when:
            past = {event: when | choice.when for event, when in past.items()}
        if found is not None:
            past, modes = join_pasts(found.past, past), found.modes.joined_with(modes)
        found = Moment(past, modes)
    return found


def wait_for(m: Machine, ident: int) -> None:
    """Record that the program joins the tasks of that identity here."""
    if not m.dead:
        facts = m.state.past[Waited(ident)] = m.assumed.facts
        for call in running_calls(m):
            if ident in call.schedule.until:
                m.store[ident, FINISHED] = constant(True)
                if facts <= call.when and call.schedule.turn == turn_of(m):
                    call.schedule.awaited = True


def record_overlaps(m: Machine, call: ParallelCall) -> None:
    """Record which running calls overlap with `call`, which starts here."""
    for other in running_calls(m):
        same_turn = other.schedule.turn == call.schedule.turn
        if other.kind != call.kind or (
            call.schedule.queue and call.schedule.queue == other.schedule.queue
        ):
            continue
        if (
            call.kind != THREAD
            and same_turn
            and (other.site, other.schedule.until) == (call.site, call.schedule.until)
        ):
            continue  # the same call with another start method
        ended = [m.read(ident, FINISHED) for ident in other.schedule.until]
        if other.schedule.awaited or any(it is not None and it.constant is True for it in ended):
            other.schedule.chained_start = in_loop_of(m, other)
            continue
        if other.kind == THREAD and not (other.many or m.still_runs(other)):
            continue
        other.overlaps.append(call)
        if call.kind != THREAD or same_turn or call.site == other.site or in_loop_of(m, other):
            call.overlaps.append(other)
    for ident in call.schedule.until:
        m.store[ident, FINISHED] = constant(False)


def running_calls(m: Machine) -> list[ParallelCall]:
    """Thread calls and single processes in the past of this path that may run concurrently."""
    return [
        it
        for it in m.state.past
        if isinstance(it, ParallelCall)
        and it.schedule.each
        and it.schedule.chained_start is None
        and (it.kind == THREAD or it.traits.single)
        and it.schedule.until
    ]


def turn_of(m: Machine) -> tuple[int, ...]:
    """The iteration of each enclosing loop and comprehension."""
    return (*m.place.turns.numbers(), m.place.turns.began)


def in_loop_of(m: Machine, call: ParallelCall) -> bool:
    """Whether this is in an iteration of the loop that made `call`."""
    *turns, inner = call.schedule.turn
    around = len(call.schedule.loops)
    outer = around - 1
    here = m.place.turns.loops
    return 0 < around <= len(here) and (
        call.schedule.loops == m.place.turns.sites()[:around]
        and turns[:outer] == [loop.turn for loop in here[:outer]]
        and inner in turns  # otherwise it was a comprehension
    )


def record_progress(m: Machine, effects: frozenset[Effect]) -> None:
    """Record that the program waited until threads had these effects."""
    if effects and not m.dead:
        m.state.past[Progress(None, effects=effects)] = m.assumed.facts


def ask_for_end(m: Machine, node: ast.AST, ident: int) -> Key:
    """The question whether the tasks of that identity have ended, as asked at `node`."""
    key = ("ended", ident, id(node))
    m.store[ident, FINISHED] = unknown(key)
    facts = m.assumed.facts
    if any(
        isinstance(event, ParallelCall) and ident in event.schedule.until and when <= facts
        for event, when in m.state.past.items()
    ):  # what wasn't started hasn't ended
        m.state.past[Progress(key, until=frozenset({ident}))] = facts
    return key


def ask_progress(m: Machine, node: ast.AST, effects: frozenset[Effect]) -> Key:
    """The question whether threads have had these effects, as asked at `node`."""
    key = ("done", id(node))
    if effects:
        m.state.past[Progress(key, effects=effects)] = m.assumed.facts
    return key
