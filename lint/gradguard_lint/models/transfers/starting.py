"""How process workers come into being: start methods and contexts."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from itertools import combinations

from gradguard_lint.domain.conditions import NONE, Conditions, any_of, consistent, plain
from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.starts import INHERITING, PROCESS, UNTOLD, Start
from gradguard_lint.domain.unknowns import of_own, own_text
from gradguard_lint.domain.values import (
    NOTHING,
    NUMBER,
    UNKNOWN,
    Const,
    Frame,
    Instance,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import AT_FORK, forked
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.multiprocessing import ON_MULTIPROCESS
from gradguard_lint.models.rows import Row

_METHOD = (0, "start method")
_METHOD_OF_MULTIPROCESS = (0, "start method of multiprocess")
"""Where the store has how processes start by default: the standard library's and torch's, and those
of ``multiprocess``, which knows nothing of it."""

STARTS_POOLS = (0, "start of joblib's pools")
"""Where the store has how the workers of joblib's pools start, if the environment says so."""


def start_method(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``set_start_method(...)``."""
    m.store[_method(name)] = args.get(*row.argument) or UNKNOWN
    return NOTHING


def _method(name: str) -> tuple[int, str]:
    """Where the store has how the processes of what is called `name` start by default."""
    top = name.partition(".")[0]
    return _METHOD_OF_MULTIPROCESS if top in ON_MULTIPROCESS else _METHOD


def default_start(m: Machine, name: str) -> Value:
    """How the process workers of what is called `name` start where the call does not say."""
    if m.place.root in m.program.unsure:
        return UNKNOWN  # the program may have said so on the way
    options = m.options
    own = m.place.root == 1 or not options.set_elsewhere
    default = constant(options.start_method if own else options.set_elsewhere)
    told = m.store.get(_method(name))
    if told is None or told == default:
        return default
    return m.filtered(join((told, *(guarded(default, it) for it in _where_none(told)))))


def _where_none(value: Value) -> Iterator[Conditions]:
    """What holds where `value`, which was given on some ways alone, is none of its choices; nothing
    where it is always one of them, or that is not known."""
    for choice in value.choices:
        if not choice.when or plain(choice.when) != choice.when:
            return
    yield frozenset().union(
        *(any_of(frozenset({(key, not truth)}) for key, truth in it.when) for it in value.choices)
    )


def start_method_now(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``get_start_method()``: who calls a function from elsewhere may have set another before."""
    if m.place.root != 1:
        return m.read(*_method(name)) or UNKNOWN
    asked = args.get(*row.argument)
    if asked is None or asked.constant is False:
        return default_start(m, name)
    told = m.store.get(_method(name))
    if asked.constant is not True or (told is not None and any(it.when for it in told.choices)):
        return UNKNOWN
    return told or NOTHING


def start_in(m: Machine, context: Value, library: str) -> Value:
    """How the workers of `library` start that are given `context`, or None."""
    if context.is_none:
        return default_start(m, library)
    for instance in context.of(Instance):
        return m.read(instance.ident, "_method") or UNKNOWN
    return context


def start_of(m: Machine, value: Value | None) -> Start | None:
    """The way to start workers that `value` names; None where they may be threads."""
    if value is None:
        return None
    known = registry_of(m).starts
    found = [
        known.get(atom.value) if isinstance(atom, Const) and isinstance(atom.value, str) else None
        for atom in m.filtered(value).atoms
    ]
    if len(found) == 1 and found[0] is not None:
        return found[0]
    if any(start is not None and start.kind != PROCESS for start in found):
        return None
    fresh = [start for start in found if start is not None and start.name not in INHERITING]
    if found and len(fresh) == len(found):
        return fresh[0]
    return Start(UNTOLD, PROCESS, "worker processes")


def starts_of(m: Machine, value: Value | None) -> list[tuple[Start, Conditions]]:
    """The ways to start workers that `value` names, each with what holds where it is that one; none
    where they may be threads."""
    start = start_of(m, value)
    if start is None or value is None:
        return []
    if start.name == UNTOLD:
        known = registry_of(m).starts
        choices = m.filtered(value).choices
        named = [
            (known[choice.atom.value], choice.when)
            for choice in choices
            if isinstance(choice.atom, Const) and choice.atom.value in known
        ]
        if len(named) < len(choices) and all(len(when) == 1 for _, when in named):
            facts = frozenset().union(*(when for _, when in named))
            named.append((start, frozenset((key, not truth) for key, truth in facts)))
        ways = [when for _, when in named]
        # What a program has learned before of several facts together, it may not know any more.
        told = all(len(when) <= 1 for when in ways)
        if told and not any(consistent(one, two) for one, two in combinations(ways, 2)):
            return named
    return [(start, NONE)]


def at_fork(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``os.register_at_fork``: what each forked process does first."""
    first = args.keywords.get("after_in_child")
    if first is not None:
        m.store[0, AT_FORK] = items("tuple", (*(known_items(forked(m)) or ()), first))
    return NOTHING


_OF_MULTIPROCESSING = frozenset({"fork", "forkserver", "loky", "spawn", UNTOLD})
"""How processes start that know their parent, and have a name of their own."""


def parent_process(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``multiprocessing.parent_process()``: None in the parent."""
    if not m.in_process_worker:
        return NOTHING
    known = m.place.worker is not None and m.place.worker.call.start in _OF_MULTIPROCESSING
    return of(Thing("parent-process", name)) if known else UNKNOWN


def current_process(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``multiprocessing.current_process()``: its name and numbers, and whether it is a daemon."""
    own, daemon = constant("MainProcess"), False
    if m.place.worker is not None and m.in_process_worker:
        if m.place.worker.call.start not in _OF_MULTIPROCESSING:
            return UNKNOWN
        own, daemon = own_text("{}-{}"), m.place.worker.call.traits.daemons
    parts = (("name", own), ("daemon", constant(daemon)), *_numbers(m, node))
    return of(Thing("namespace", name, m.ident_at(node, m.in_process_worker), parts=parts))


def _numbers(m: Machine, node: ast.AST) -> Iterator[tuple[str, Value]]:
    """By which attributes a worker process tells itself from the others."""
    if m.in_process_worker:
        for name in ("pid", "ident", "_identity"):
            yield name, of_own(id(node), name)


def process_number(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``os.getpid()``."""
    return of_own(id(node)) if m.in_process_worker else NUMBER


def where_not(count: Value, values: tuple[Hashable, ...]) -> Conditions | None:
    """What holds where `count` is none of these `values`; None where it certainly is one."""
    worlds: list[Conditions] = []
    for choice in count.choices:
        key = choice.atom.key if isinstance(choice.atom, Unknown) else None
        if isinstance(choice.atom, Const) and choice.atom.value in values:
            continue
        known = NONE if key is None else frozenset({(("eq", key, values[0]), False)})
        if consistent(choice.when, known):
            worlds.append(choice.when | known)
    return any_of(worlds) if worlds else None
