"""Start methods of process workers, and contexts."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from itertools import combinations

from gradguard_lint.domain.conditions import NONE, Conditions, any_of, consistent, plain
from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.starts import INHERITING, PROCESS, UNSPECIFIED, Start
from gradguard_lint.domain.unknowns import process_specific, process_specific_text
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
"""The store places of default start methods: of the standard library and torch, and of
``multiprocess``, which has its own."""

STARTS_POOLS = (0, "start of joblib's pools")
"""The store place of the start method of joblib's pools, if the environment sets it."""


def start_method(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``set_start_method(...)``."""
    m.store[_method(name)] = args.get(*row.argument) or UNKNOWN
    return NOTHING


def _method(name: str) -> tuple[int, str]:
    """The store place of the default start method of `name`."""
    top = name.partition(".")[0]
    return _METHOD_OF_MULTIPROCESS if top in ON_MULTIPROCESS else _METHOD


def default_start(m: Machine, name: str) -> Value:
    """The start method of process workers of `name`, if the call doesn't specify it."""
    if m.place.root in m.program.unsure:
        return UNKNOWN  # the program may have set it in skipped code
    options = m.options
    own = m.place.root == 1 or not options.set_elsewhere
    default = constant(options.start_method if own else options.set_elsewhere)
    method = m.store.get(_method(name))
    if method is None or method == default:
        return default
    return m.filtered(join((method, *(guarded(default, it) for it in _where_none(method)))))


def _where_none(value: Value) -> Iterator[Conditions]:
    """The conditions for `value` to be none of its choices; nothing if that can't be, or is
    unknown."""
    for choice in value.choices:
        if not choice.when or plain(choice.when) != choice.when:
            return
    yield frozenset().union(
        *(any_of(frozenset({(key, not truth)}) for key, truth in it.when) for it in value.choices)
    )


def start_method_now(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``get_start_method()``: callers of a function may have set another one."""
    if m.place.root != 1:
        return m.read(*_method(name)) or UNKNOWN
    asked = args.get(*row.argument)
    if asked is None or asked.constant is False:
        return default_start(m, name)
    method = m.store.get(_method(name))
    if asked.constant is not True or (method is not None and any(it.when for it in method.choices)):
        return UNKNOWN
    return method or NOTHING


def start_in(m: Machine, context: Value, library: str) -> Value:
    """The start method of `library` with `context`, which may be None."""
    if context.is_none:
        return default_start(m, library)
    for instance in context.of(Instance):
        return m.read(instance.ident, "_method") or UNKNOWN
    return context


def start_of(m: Machine, value: Value | None) -> Start | None:
    """The start that `value` names; None if it may be threads."""
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
    return Start(UNSPECIFIED, PROCESS, "worker processes")


def starts_of(m: Machine, value: Value | None) -> list[tuple[Start, Conditions]]:
    """The starts that `value` names, with conditions; none if it may be threads."""
    start = start_of(m, value)
    if start is None or value is None:
        return []
    if start.name == UNSPECIFIED:
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
        # Conjunctions may have been dropped from the assumptions since.
        are_simple = all(len(when) <= 1 for when in ways)
        if are_simple and not any(consistent(one, two) for one, two in combinations(ways, 2)):
            return named
    return [(start, NONE)]


def at_fork(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``os.register_at_fork``: functions that each forked process runs first."""
    first = args.keywords.get("after_in_child")
    if first is not None:
        m.store[0, AT_FORK] = items("tuple", (*(known_items(forked(m)) or ()), first))
    return NOTHING


_OF_MULTIPROCESSING = frozenset({"fork", "forkserver", "loky", "spawn", UNSPECIFIED})
"""Start methods whose processes have a parent and a name."""


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
    """``multiprocessing.current_process()``: its name, numbers and `daemon`."""
    own, daemon = constant("MainProcess"), False
    if m.place.worker is not None and m.in_process_worker:
        if m.place.worker.call.start not in _OF_MULTIPROCESSING:
            return UNKNOWN
        own, daemon = process_specific_text("{}-{}"), m.place.worker.call.traits.daemons
    parts = (("name", own), ("daemon", constant(daemon)), *_numbers(m, node))
    return of(Thing("namespace", name, m.ident_at(node, m.in_process_worker), parts=parts))


def _numbers(m: Machine, node: ast.AST) -> Iterator[tuple[str, Value]]:
    """Attributes that differ between worker processes."""
    if m.in_process_worker:
        for name in ("pid", "ident", "_identity"):
            yield name, process_specific(id(node), name)


def process_number(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``os.getpid()``."""
    return process_specific(id(node)) if m.in_process_worker else NUMBER


def where_not(count: Value, values: tuple[Hashable, ...]) -> Conditions | None:
    """The conditions for `count` to be none of `values`; None if it certainly is one."""
    worlds: list[Conditions] = []
    for choice in count.choices:
        key = choice.atom.key if isinstance(choice.atom, Unknown) else None
        if isinstance(choice.atom, Const) and choice.atom.value in values:
            continue
        known = NONE if key is None else frozenset({(("eq", key, values[0]), False)})
        if consistent(choice.when, known):
            worlds.append(choice.when | known)
    return any_of(worlds) if worlds else None
