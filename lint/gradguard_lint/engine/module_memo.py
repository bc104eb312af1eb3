"""Statements of modules that several programs import: run once, and replayed for the others.

A statement of a module's own code does the same in each program in which what it reads is the same.
What it read of the store is kept with what it wrote; another program reads that first, in the same
order, and runs the statement itself where it finds anything else. A statement that does more than
bind names and make objects (an effect, a proof, an import in a function) is always run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from gradguard_lint.domain.atoms import Imported
from gradguard_lint.domain.frames import Frame
from gradguard_lint.domain.state import Place, State, Store
from gradguard_lint.domain.values import Value
from gradguard_lint.engine.run_parts import PROGRAMS
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.engine.machine import Machine
    from gradguard_lint.reading.source import Module

    Read = tuple[Callable[[Machine, Any], object], Any, object]
    """How something outside a statement was asked for, for what, and what it was."""

_BINDING: tuple[type[ast.stmt], ...] = (
    *(ast.AnnAssign, ast.Assign, ast.AsyncFunctionDef, ast.ClassDef, ast.Expr, ast.FunctionDef),
)
"""Statements that are replayed: others import, or part ways."""

MOST = 3
"""So many different outcomes of a statement are kept, and so often it is tried."""


class ModuleMemo:
    """What programs share of a module.

    Attributes:
        frame: its own frame.
        outcomes: of its statements.
        tries: how often each was run so that it could be replayed.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.outcomes: dict[ast.stmt, list[Outcome]] = {}
        self.tries: dict[ast.stmt, int] = {}


@fields
class Outcome:
    """What a statement read outside, in order, and what it changed.

    Attributes:
        steps: what it takes of the budget.
        facts: what it adds to dictionaries of the machine, by their names.
    """

    reads: list[Read]
    writes: dict[Place, Value | None]
    steps: int
    executed: set[int]
    executed_methods: set[tuple[int, int]]
    executed_lines: dict[tuple[str, int], int]
    attribute_names: dict[int, dict[str, None]]
    facts: dict[str, dict[Any, Any]]


class Recording:
    """A statement that is being run so that it can be replayed.

    It writes to a store of its own; modules that it imports on the way write to the one below.
    """

    def __init__(self, below: Store, newest: int, others: Sequence[int]) -> None:
        self.below = below
        self.others = others
        """The sizes of what a replay does not change."""
        self.reads: list[Read] = []
        self.can_be_replayed = True
        self.inner_steps = 0
        """Steps of the modules that were imported on the way."""
        self._newest = newest
        self._seen: dict[Place, Value | None] = {}
        self._held: dict[Place, Value] = {}

    # -- what is below a store that holds the same, and knows what was asked ----------------------

    def get(self, place: Place) -> Value | None:
        """What is under `place`, outside of what the statement wrote."""
        value = self.below.get(place)
        if value is None and place[0] > self._newest:
            return None  # of an object of its own
        if place not in self._seen:
            self._seen[place] = value
            self.reads.append((_held, place, value))
        elif self._seen[place] is not value:
            self.can_be_replayed = False
        return value

    def __contains__(self, place: Place) -> bool:
        return self.get(place) is not None

    def keys(self) -> Iterator[Place]:
        """All places: then it hangs on everything."""
        self.can_be_replayed = False
        self._held = self.below.held()
        return iter(self._held)

    def __getitem__(self, place: Place) -> Value:
        return self._held[place]

    # -- what is asked otherwise ------------------------------------------------------------------

    def resolved(self, place: Place, value: Value) -> None:
        """The imported name under `place` stands for `value`."""
        if self.reads and self.reads[-1][0] is _held and self.reads[-1][1] == place:
            self.reads.pop()
        self._seen[place] = value
        self.reads.append((_held, place, value))

    def asked(self, how: Callable[[Machine, Any], object], what: Hashable, found: object) -> None:
        """Note a question whose answer a replay compares."""
        self.reads.append((how, what, found))


@contextmanager
def below_recording(m: Machine) -> Iterator[None]:
    """A block that does something for the whole program, and not for the statement that is being
    recorded."""
    recording = m.recording
    if recording is None:
        yield
        return
    own, left, others = m.state, m.budget.left, _others(m)
    m.recording = None
    m.state = State(recording.below, own.assumed, own.past, own.modes, own.dead)
    try:
        yield
    finally:
        now = m.state
        recording.below = now.store
        recording.inner_steps += left - m.budget.left
        sizes = zip(recording.others, others, _others(m), strict=True)
        recording.others = [known + new - old for known, old, new in sizes]
        m.state = State(own.store, now.assumed, now.past, now.modes, now.dead)
        m.recording = recording


def _held(m: Machine, place: Place) -> Value | None:
    """What is under `place`; an imported name stands for what it imports."""
    value = m.store.get(place)
    if value is not None and isinstance(value.choices[0].atom, Imported):
        return m.resolve(*place, value)
    return value


def begin_module(m: Machine) -> int | None:
    """Count identities among those of all modules; what `end_module` is called with."""
    newest = m.caches.newest_ident
    if newest < PROGRAMS:
        return None  # a module imports this one
    m.caches.newest_ident = _NEWEST[0]
    return newest


def end_module(m: Machine, newest: int | None) -> None:
    """Count identities among the program's own again."""
    if newest is not None:
        _NEWEST[0], m.caches.newest_ident = m.caches.newest_ident, newest


_NEWEST = [0]
"""The newest identity in a module: what all programs of this process find there is the same."""


def memo_of(m: Machine, module: Module, key: Hashable) -> ModuleMemo:
    """What programs with the same settings, of which `key` is one, share of `module`."""
    whole = (key, m.options.start_method, m.options.set_elsewhere)
    memo = module.memos.get(whole)
    if memo is None:
        memo = module.memos[whole] = ModuleMemo(Frame(m.new_ident(), module))
        memo.frame.shared = True
    return memo


def run_body(m: Machine, frame: Frame, memo: ModuleMemo) -> None:
    """Run the code of a module, as far as it has to be run."""
    for statement in memo.frame.module.tree.body:
        if m.dead:
            return
        if not isinstance(statement, _BINDING) or m.assumed or m.facts.evidence.proved:
            m.block(frame, (statement,))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            m.budget.left -= 2
        elif not _replay(m, memo.outcomes.get(statement, ())):
            _record(m, frame, memo, statement)


def _replay(m: Machine, outcomes: Sequence[Outcome]) -> bool:
    """Whether one of `outcomes` is what the statement has here, too: then it has it."""
    for outcome in outcomes:
        if m.budget.can_take(outcome.steps) and all(
            _equal(how(m, what), found) for how, what, found in outcome.reads
        ):
            break
    else:
        return False
    store = m.store
    for place, value in outcome.writes.items():
        if value is None:
            store.drop(place)
        else:
            store[place] = value
    facts = m.facts
    facts.executed |= outcome.executed
    facts.executed_methods |= outcome.executed_methods
    for where, ident in outcome.executed_lines.items():
        facts.executed_lines.setdefault(where, (ident, m.place.root_line))
    growing = _growing(m)
    for name, more in outcome.facts.items():
        growing[name].update(more)
    for ident, names in outcome.attribute_names.items():
        facts.attribute_names.setdefault(ident, {}).update(names)
    m.budget.left -= outcome.steps
    return True


def _equal(found: object, known: object) -> bool:
    return found is known or found == known


def _record(m: Machine, frame: Frame, memo: ModuleMemo, statement: ast.stmt) -> None:
    """Run a statement, and keep what it does where that can be replayed."""
    tries = memo.tries.get(statement, 0)
    if tries >= MOST:
        m.block(frame, (statement,))
        return
    memo.tries[statement] = tries + 1
    facts, before, left = m.facts, m.state, m.budget.left
    was_open, facts.evidence.is_open = facts.evidence.is_open, False
    recording = Recording(before.store, m.caches.newest_ident, _others(m))
    store = Store()
    store._shared = recording  # type: ignore[assignment]
    m.state = State(store, before.assumed, before.past, before.modes)
    executed, methods, lines = facts.executed, facts.executed_methods, facts.executed_lines
    facts.executed, facts.executed_methods, facts.executed_lines = set(), set(), {}
    sizes = {name: len(it) for name, it in _growing(m).items()}
    outer, m.recording = m.recording, recording
    try:
        m.block(frame, (statement,))
    finally:
        m.recording = outer
        is_open = facts.evidence.is_open
        facts.evidence.is_open = is_open or was_open
        own, own_methods, own_lines = facts.executed, facts.executed_methods, facts.executed_lines
        facts.executed, facts.executed_methods = executed | own, methods | own_methods
        facts.executed_lines = {**own_lines, **lines}
        writes = m.state.store.written()
        below = recording.below
        for place, value in writes.items():
            if value is None:
                below.drop(place)
            else:
                below[place] = value
        after = m.state
        m.state = State(below, after.assumed, after.past, after.modes, after.dead)
    if (
        recording.can_be_replayed
        and not (after.dead or after.assumed or after.modes != before.modes or is_open)
        and _others(m) == recording.others
    ):
        names = facts.attribute_names
        changed = dict.fromkeys(ident for ident, name in writes if name in names.get(ident, ()))
        more = {
            name: {key: held[key] for key in islice(reversed(held), len(held) - sizes[name])}
            for name, held in _growing(m).items()
        }
        more["origins"] |= {it: facts.origins[it] for it in writes if it in facts.origins}
        memo.outcomes.setdefault(statement, []).append(
            Outcome(
                recording.reads,
                writes,
                left - m.budget.left - recording.inner_steps,
                own,
                own_methods,
                {where: ident for where, (ident, _) in own_lines.items()},
                {ident: dict(names[ident]) for ident in changed},
                more,
            )
        )


def _growing(m: Machine) -> Mapping[str, dict[Any, Any]]:
    """What a statement adds to under keys of its own expressions and objects."""
    turns, evidence = m.place.turns, m.facts.evidence
    return {
        "idents": m.caches.idents,
        "invariant": turns.loop_invariant_args,
        "invariant fields": turns.loop_invariant_fields,
        "made": turns.made,
        "operands": evidence.operands,
        "origins": m.facts.origins,
        "per turn": turns.per_turn_args,
        "subjects": evidence.subjects,
    }


def _others(m: Machine) -> Sequence[int]:
    """What changes where a statement does anything that is not replayed."""
    facts, evidence, budget = m.facts, m.facts.evidence, m.budget
    program = [it for it in vars(m.program).values() if isinstance(it, (dict, list, set))]
    others = (
        *(facts.defaults, facts.handed_out, facts.pool_starts, facts.queried_attributes),
        *(facts.queried_lengths, facts.rebound_globals, facts.signals, facts.star_imports),
        *(facts.written_on_unknown, m.place.decorating_contexts, budget.unfinished, budget.cut),
    )
    proved = (len(kinds) for kinds in evidence.all_kinds())
    return [*map(len, program), *map(len, others), sum(proved)]
