"""Signals between threads: events that they set, and queues that they fill or empty."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Effect
from gradguard_lint.domain.payloads import Payload
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.values import NOTHING, Frame, Value, unknown
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.waiting import ask_progress, record_progress
from gradguard_lint.models.rows import Row

SIGNAL = "signal"
"""First element of keys of events and queues, about which nothing else is known."""

_TELLS = {"set": "set", "put": "put", "put_nowait": "put", "task_done": "done"}
_WAITS = {"get": "put", "get_nowait": "put"}
"""Methods that return only after another thread's signal."""


def signal(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``threading.Event()``, ``queue.Queue()``."""
    return unknown((SIGNAL, m.ident_at(node)))


def waits(key: Key, name: Key) -> bool:
    """Whether the method `name` of the object with that key waits for another thread."""
    known = isinstance(key, tuple) and key[0] == SIGNAL
    return name == "wait" or (known and name in ("get", "join"))


def method(m: Machine, node: ast.AST, key: Key, name: str, args: Args) -> Value | None:
    """A method of the event or queue with this key; None if its result is unknown."""
    if m.in_process_worker or not isinstance(key, tuple) or m.dead:
        return None
    ident = key[1]
    assert isinstance(ident, int)
    if name in _TELLS:
        _record_signal(m, ident, _TELLS[name])
    elif name in _WAITS:
        record_progress(m, _preceding_effects(m, ident, _WAITS[name]))
    elif name == "join" and (ident, "put", m.place.root) in m.facts.signals:
        record_progress(m, _preceding_effects(m, ident, "done"))
    elif name == "clear":
        m.facts.signals.pop((ident, "set", m.place.root), None)
    elif name == "wait" and (args.get(0, "timeout") or NOTHING).is_none:
        record_progress(m, _preceding_effects(m, ident, "set"))
    elif name in ("wait", "is_set"):
        return unknown(ask_progress(m, node, _preceding_effects(m, ident, "set")))
    return None


def _record_signal(m: Machine, ident: int, what: str) -> None:
    """Record a signal: effects of this thread before each such signal precede a wait's end."""
    worker, place = m.place.worker, (ident, what, m.place.root)
    here: dict[tuple[type[Payload], ast.AST], frozenset[Effect]] = {}
    for event in m.state.past:
        if isinstance(event, Effect) and worker is not None and event.worker is worker:
            doing = (type(event.payload), event.site.node)
            here[doing] = here.get(doing, frozenset()) | {event}
    earlier = m.facts.signals.get(place)
    if earlier is not None:
        here = {doing: here[doing] | known for doing, known in earlier.items() if doing in here}
    m.facts.signals[place] = here


def _preceding_effects(m: Machine, ident: int, what: str) -> frozenset[Effect]:
    """The effects that precede the end of a wait for this signal."""
    return frozenset().union(*m.facts.signals.get((ident, what, m.place.root), {}).values())
