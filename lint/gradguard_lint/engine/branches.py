"""Branches: assumptions on each path, and how paths fork and join."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from gradguard_lint.domain.conditions import (
    GPU_PRESENT,
    NONE,
    Conditions,
    any_of,
    assume,
    plain,
    plain_condition,
)
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import fill_absent
from gradguard_lint.domain.state import Place, State
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Choice,
    Const,
    External,
    Frame,
    Instance,
    Items,
    Table,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.containers import length, store_contents
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend
from gradguard_lint.engine.truth import compare, denying_gpu, truth_of
from pytest_gradguard.records import replace

ALTERNATIVES = 6
"""The most alternatives of a name that are followed separately."""

YES = constant(True)
NO = constant(False)

TURN = "turn"
"""Key prefix for the iteration of a loop over known items, if a test identifies it."""


def definite(test: Value) -> bool | None:
    """The truth of `test`, if it is known."""
    truths = {truth_of(atom) for atom in test.atoms}
    return truths.pop() if len(truths) == 1 else None


def all_of(m: Machine, tests: list[Value]) -> Value:
    """The conjunction of `tests`."""
    open_ = [test for test in tests if definite(test) is not True]
    if any(definite(test) is False for test in open_):
        return NO
    if not open_:
        return YES
    if len(open_) == 1:
        return open_[0]
    found, passed = [], NONE
    for test in open_:
        found.append(guarded(NO, passed | condition(m, test, False)))
        passed |= condition(m, test, True)
    return join((*found, guarded(YES, passed)))


def _question(m: Machine, atom: Atom) -> Key:
    """The key of the truth of `atom`, if that is unknown."""
    if isinstance(atom, Items):
        atom = compare(ast.Gt(), length(m, atom), Const(0, "int"))
    if isinstance(atom, External):
        return None if atom.name in m.facts.written_on_unknown else ("external", atom.name)
    return atom.key if isinstance(atom, Unknown) else None


def negated(m: Machine, atom: Atom) -> Atom:
    """``not atom``."""
    truth = truth_of(atom)
    if truth is not None:
        return Const(not truth, "bool")
    key = _question(m, atom)
    return Unknown(("not", key) if key is not None else None)


def choices_with_truth(m: Machine, test: Value, truth: bool) -> list[Choice]:
    """The alternatives of `test` that may have `truth`, with conditions."""
    found = []
    for choice in test.choices:
        atom = choice.atom
        known = truth_of(atom)
        key = _question(m, atom) if known is None else None
        if key is not None:
            found.append(Choice(atom, choice.when | {plain_condition(key, truth)}))
        elif known is None or known is truth:
            found.append(choice)
    return found


def condition(m: Machine, test: Value, truth: bool) -> Conditions:
    """The conditions under which `test` has `truth`."""
    return _implied_conditions(test, truth, choices_with_truth(m, test, truth))


def _implied_conditions(test: Value, truth: bool, kept: list[Choice]) -> Conditions:
    if len(test.choices) == 1:
        return kept[0].when if kept else NONE
    found = any_of(choice.when for choice in kept)
    ruled_out = {
        (key, not wanted)
        for choice in test.choices
        if len(choice.when) == 1 and truth_of(choice.atom) is (not truth)
        for key, wanted in plain(choice.when)
    }
    return found | {item for item in ruled_out if (item[0], not item[1]) not in found}


def enter_branch(m: Machine, frame: Frame, node: ast.expr, test: Value, truth: bool) -> bool:
    """Assume that the test `node` has `truth`; False if it can't."""
    return assume_test(m, test, truth) and refine(m, frame, node, truth)


def assume_test(m: Machine, test: Value, truth: bool) -> bool:
    """Assume that `test` has `truth`; False if it can't."""
    kept = choices_with_truth(m, test, truth)
    if not kept:
        return False
    when = _implied_conditions(test, truth, kept)
    if m.conflicts(when):
        return False
    assume(m.assumed, when)
    return True


def refine(m: Machine, frame: Frame, node: ast.expr, truth: bool) -> bool:
    """Assume what the parts of a test imply; False if that is impossible."""
    denying = denying_gpu(node)
    if denying is truth:
        m.assumed[GPU_PRESENT] = False
    elif denying is not None and GPU_PRESENT not in m.assumed:
        m.assumed[GPU_PRESENT] = True
    if isinstance(node, ast.Compare) and type(node.ops[0]) is (ast.In if truth else ast.NotIn):
        _has_key(m, frame, node)
    if isinstance(node, ast.Call):
        _narrow(m, frame, node, truth)
    elif isinstance(node, (ast.Attribute, ast.Compare, ast.Name)):
        _narrow_by_value(m, frame, node, truth)
        if not isinstance(node, ast.Name):
            _narrow_by_attribute(m, frame, node, truth)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return refine(m, frame, node.operand, not truth)
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) is truth:
        return all(_assume_part(m, frame, part, truth) for part in node.values)
    return True


def _assume_part(m: Machine, frame: Frame, part: ast.expr, truth: bool) -> bool:
    """Assume that a part of a test has `truth`; its side effects have already happened."""
    if is_plain(m, part):
        return enter_branch(m, frame, part, m.eval(frame, part), truth)
    return refine(m, frame, part, truth)


def _narrow(m: Machine, frame: Frame, node: ast.Call, truth: bool) -> None:
    """Narrow a name's alternatives by ``isinstance(name, ...)`` and similar tests."""
    first = node.args[0] if node.args else None
    found = m.lookup(frame, first.id) if isinstance(first, ast.Name) else None
    if found is None or len(found[0].choices) < 2 or not isinstance(first, ast.Name):
        return
    value, home = found
    function = m.eval(frame, node.func)
    only = function.only
    if not isinstance(only, External) or not only.name.rpartition(".")[2].startswith(_ASKS):
        return
    others = [m.eval(frame, item) for item in node.args[1:]]
    answers = [
        definite(m.call(frame, node, function, Args([of(choice.atom), *others])))
        for choice in value.choices
    ]
    _keep(m, (home.ident, first.id), value, answers, truth)


def _narrow_by_value(
    m: Machine, frame: Frame, node: ast.Attribute | ast.Compare | ast.Name, truth: bool
) -> None:
    """Narrow the alternatives of a name or an object's attribute by a comparison: ``name ==
    "cpu"``, ``self.name``."""
    place = stored_at(m, frame, node.left if isinstance(node, ast.Compare) else node)
    value = m.read(*place) if place is not None else None
    if place is None or value is None or len(value.choices) < 2:
        return
    if not isinstance(node, ast.Compare):
        answers = [truth_of(choice.atom) for choice in value.choices]
    else:
        if len(node.ops) > 1 or not is_plain(m, node.comparators[0]):
            return
        other = m.eval(frame, node.comparators[0]).only
        if other is None:
            return
        answers = [truth_of(compare(node.ops[0], it.atom, other)) for it in value.choices]
    _keep(m, place, value, answers, truth)


def stored_at(m: Machine, frame: Frame, asked: ast.expr) -> Place | None:
    """The place of the value of `asked`; None if it is unknown or ambiguous."""
    if isinstance(asked, ast.Name):
        found = m.lookup(frame, asked.id)
        return (found[1].ident, asked.id) if found is not None else None
    if not isinstance(asked, ast.Attribute) or not isinstance(asked.value, ast.Name):
        return None
    found = m.lookup(frame, asked.value.id)
    owner = found[0].only if found is not None else None
    if not isinstance(owner, Instance) or m.place.turns.is_several(owner.ident):
        return None
    place = (owner.ident, asked.attr)
    return place if place in m.store else None


def _keep(m: Machine, place: Place, value: Value, answers: list[bool | None], truth: bool) -> None:
    """Keep the alternatives at `place` whose answer may be `truth`, unless none are left."""
    ruled_out = not truth
    kept = [
        choice
        for choice, answer in zip(value.choices, answers, strict=True)
        if answer is not ruled_out
    ]
    if kept and len(kept) < len(value.choices):
        m.store[place] = Value(tuple(kept))


def _narrow_by_attribute(
    m: Machine, frame: Frame, node: ast.Attribute | ast.Compare, truth: bool
) -> None:
    """Narrow the tensors of a name by a test of their attribute."""
    asked = node.left if isinstance(node, ast.Compare) else node
    if not isinstance(asked, ast.Attribute):
        return
    while isinstance(asked, ast.Attribute):
        asked = asked.value
    found = m.lookup(frame, asked.id) if isinstance(asked, ast.Name) else None
    if not isinstance(asked, ast.Name) or found is None:
        return
    value, home = found
    if len(value.choices) < 2 or not any(value.tensors()) or not is_plain(m, node):
        return
    kept = []
    for choice in value.choices:
        m.store[home.ident, asked.id] = of(choice.atom)
        if definite(m.eval(frame, node)) is not (not truth):
            kept.append(choice)
    m.store[home.ident, asked.id] = Value(tuple(kept)) if kept else value


def _has_key(m: Machine, frame: Frame, node: ast.Compare) -> None:
    """Record that a dict has a key which a test found in it."""
    if len(node.ops) > 1 or not is_plain(m, node):
        return
    table, key = m.eval(frame, node.comparators[0]).only, m.eval(frame, node.left).only
    if not isinstance(table, Table) or not table.ident or not isinstance(key, Const):
        return
    if table.get(key.value) is None:
        item = fill_absent(dict(table.perhaps).get(key.value, UNKNOWN), UNKNOWN)
        store_contents(m, replace(table, entries=(*table.entries, (key.value, item))))


_ASKS = ("isinstance", "is_", "hasattr")


def run_alternatives(m: Machine, choices: Sequence[Choice], go: Callable[[Atom], Value]) -> Value:
    """Run `go` on each alternative in a state of its own, so that exceptions don't spread to
    others."""
    results: list[Value] = []
    before = m.state
    ends: list[State] = []
    assumed = before.assumed.copy()
    last = min(len(choices), ALTERNATIVES) - (len(choices) <= ALTERNATIVES)
    for number, choice in enumerate(choices[:ALTERNATIVES]):
        m.state = before.copy() if number < last else before
        assume(m.assumed, choice.when)
        results.append(guarded(go(choice.atom), choice.when))
        ends.append(m.state)
    if len(choices) > ALTERNATIVES:
        results.append(UNKNOWN)
        ends.append(before)
    m.meet(ends)
    m.state.assumed = assumed
    return join(results)


def fork(
    m: Machine,
    frame: Frame,
    node: ast.expr,
    test: Value,
    ways: tuple[Callable[[], None], Callable[[], None]],
) -> None:
    """Run both branches that `test` allows, and join their states."""
    known = definite(test)
    if known is not None:  # no fork
        if enter_branch(m, frame, node, test, known):
            ways[not known]()
        else:
            m.die()
        return
    before = m.state
    ends = []
    for truth, way in zip((True, False), ways, strict=True):
        m.state = before.copy() if truth else before
        if enter_branch(m, frame, node, test, truth):
            way()
        else:
            m.die()
        ends.append(m.state)
    m.meet(ends)


def is_plain(m: Machine, node: ast.expr) -> bool:
    """Whether evaluating `node` has no side effects, so that branches need no states."""
    known = m.caches.changes_nothing.get(node)
    if known is None:
        known = m.caches.changes_nothing[node] = not any(
            isinstance(part, (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
            for part in descend(node)
        )
    return known
