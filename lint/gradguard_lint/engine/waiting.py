"""When workers come into being, and how far what runs beside the program has come by then."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Effect, ParallelCall, Told, Waited
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.domain.state import Moment, met_pasts
from gradguard_lint.domain.values import UNKNOWN, Const, of
from gradguard_lint.engine.machine import Machine


def started(m: Machine, ident: int) -> None:
    """The workers of the pool `ident` come into being here, on this way."""
    m.moments.append(Moment(dict(m.state.past), m.modes))
    m.store[ident, "<started>"] = of(Const(len(m.moments) - 1, "int"))


def forget_start(m: Machine, ident: int) -> None:
    """The pool `ident` is made anew, and its workers are not there yet."""
    m.store[ident, "<started>"] = UNKNOWN


def moment_of(m: Machine, ident: int) -> Moment | None:
    """When the workers of `ident` came into being; None: not yet, or that is unknown.

    Where it may be one of several moments, what had happened is what had at any of them.
    """
    number = m.read(ident, "<started>")
    found: Moment | None = None
    for choice in number.choices if number is not None else ():
        if not isinstance(choice.atom, Const) or not isinstance(choice.atom.value, int):
            return None
        then = m.moments[choice.atom.value]
        past, modes = then.past, then.modes
        if choice.when:
            past = {event: when | choice.when for event, when in past.items()}
        if found is not None:
            past, modes = met_pasts(found.past, past), found.modes.met(modes)
        found = Moment(past, modes)
    return found


def wait_for(m: Machine, ident: int) -> None:
    """What runs under that identity has come to its end here, on this way."""
    if not m.dead:
        facts = m.state.past[Waited(ident)] = m.assumed.facts
        for call in running(m):
            if ident in call.until and call.turn == turn_of(m) and facts <= call.when:
                call.awaited = True


def running(m: Machine) -> list[ParallelCall]:
    """What loops have given to threads on the way here, one task after the other, and for whose end
    nobody has waited in the same turn."""
    return [
        it
        for it in m.state.past
        if isinstance(it, ParallelCall)
        and (it.kind, it.each, it.awaited) == (THREAD, True, False)
        and it.many
        and it.until
    ]


def turn_of(m: Machine) -> tuple[int, ...]:
    """The turn of the loops around."""
    return (*m.turns, m.turn)


def was_before(m: Machine, effects: frozenset[Effect]) -> None:
    """What threads do has happened here, on this way: somebody has waited until they had come so
    far."""
    if effects and not m.dead:
        m.state.past[Told(None, effects=effects)] = m.assumed.facts


def ask_for_end(m: Machine, node: ast.AST, ident: int) -> Key:
    """The question whether what runs under that identity has come to its end, as the program asks
    it here."""
    key = ("ended", ident, id(node))
    facts = m.assumed.facts
    if any(
        isinstance(event, ParallelCall) and ident in event.until and when <= facts
        for event, when in m.state.past.items()
    ):  # what was not started has not ended
        m.state.past[Told(key, until=frozenset({ident}))] = facts
    return key


def ask_for(m: Machine, node: ast.AST, effects: frozenset[Effect]) -> Key:
    """The question whether threads have come so far that they have done this, asked here."""
    key = ("done", id(node))
    if effects:
        m.state.past[Told(key, effects=effects)] = m.assumed.facts
    return key
