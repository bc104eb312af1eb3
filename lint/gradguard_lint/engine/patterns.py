"""``match`` statements: which case is selected, and what its pattern binds."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import closed, items, rest_of, sequence
from gradguard_lint.domain.state import State, join_states
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Class,
    Const,
    External,
    Frame,
    Instance,
    Items,
    Table,
    Tensor,
    Unknown,
    Value,
    constant,
    of,
    unknown,
)
from gradguard_lint.engine.branches import NO, YES, all_of, assume_test, definite, enter_branch
from gradguard_lint.engine.containers import element_of, with_identity
from gradguard_lint.engine.fields import fields_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend
from gradguard_lint.engine.truth import compare_values


def do_Match(m: Machine, frame: Frame, node: ast.Match) -> None:
    subject = m.eval(frame, node.subject)
    ends: list[State] = []
    for case in node.cases:
        if m.dead:
            break
        other = m.state
        m.state = other.copy()
        test = matches(m, frame, case.pattern, m.filtered(subject))
        falls: list[State] = []
        if assume_test(m, test, True):
            if case.guard is not None:
                holds = m.eval(frame, case.guard)
                inside, m.state = m.state, m.state.copy()
                if enter_branch(m, frame, case.guard, holds, False):
                    falls.append(m.state)
                m.state = inside
                if not enter_branch(m, frame, case.guard, holds, True):
                    m.die()
            m.block(frame, case.body)
            ends.append(m.state)
        m.state = other
        if assume_test(m, test, False):
            falls.append(m.state)
        met = join_states(falls)
        if met is None:
            m.state = other.copy()
            m.die()
        else:
            m.state = met
    m.meet([*ends, m.state])


def matches(m: Machine, frame: Frame, pattern: ast.pattern, value: Value) -> Value:
    """Whether `value` matches; binds the names of `pattern`."""
    match pattern:
        case ast.MatchValue(value=node):
            other = m.eval(frame, node)
            return compare_values(ast.Eq(), value, other)
        case ast.MatchSingleton(value=single):
            return compare_values(ast.Is(), value, constant(single))
        case ast.MatchAs(pattern=inner, name=name):
            test = matches(m, frame, inner, value) if inner is not None else YES
            if name is not None:
                m.write(frame, name, value)
            return test
        case ast.MatchOr(patterns=inners):
            return _either(m, frame, inners, value)
        case ast.MatchSequence(patterns=inners):
            return _sequence(m, frame, inners, value)
        case ast.MatchMapping():
            return _mapping(m, frame, pattern, value)
        case ast.MatchClass():
            return _object(m, frame, pattern, value)
    _bind_anything(m, frame, pattern)
    return UNKNOWN


def _bind_anything(m: Machine, frame: Frame, pattern: ast.AST) -> None:
    """Bind the names of `pattern` to unknown values."""
    for part in descend(pattern):
        for name in (getattr(part, "name", None), getattr(part, "rest", None)):
            if isinstance(name, str):
                m.write(frame, name, UNKNOWN)


def _either(m: Machine, frame: Frame, patterns: list[ast.pattern], value: Value) -> Value:
    if any(isinstance(part, ast.MatchAs | ast.MatchStar) for p in patterns for part in descend(p)):
        for pattern in patterns:
            _bind_anything(m, frame, pattern)
        return UNKNOWN
    tests = [matches(m, frame, pattern, value) for pattern in patterns]
    if any(definite(test) is True for test in tests):
        return YES
    open_ = [test for test in tests if definite(test) is not False]
    if not open_:
        return NO
    if len(open_) == 1:
        return open_[0]
    only = value.only
    if isinstance(only, Unknown) and only.key is not None:
        keys = [getattr(test.only, "key", None) for test in open_]
        names = [key[2] for key in keys if isinstance(key, tuple) and key[:2] == ("eq", only.key)]
        if len(names) == len(open_):
            return unknown(("among", only.key, tuple(names)))
    return UNKNOWN


def _sequence(m: Machine, frame: Frame, patterns: list[ast.pattern], value: Value) -> Value:
    star = next((i for i, part in enumerate(patterns) if isinstance(part, ast.MatchStar)), None)
    only = value.only
    if isinstance(only, (Const, Table, Tensor)) or _plain(only):
        return NO
    known = only.items if isinstance(only, Items) else None
    after = len(patterns) - star - 1 if star is not None else 0
    if known is not None and (
        len(known) != len(patterns) if star is None else len(known) < len(patterns) - 1
    ):
        return NO
    tests = [YES if known is not None else UNKNOWN]
    for index, part in enumerate(patterns):
        place = index if star is None or index < star else index - len(patterns)
        if isinstance(part, ast.MatchStar):
            rest = (
                items("list", known[index : len(known) - after])
                if known is not None
                else sequence(element_of(m, value))
            )
            if part.name is not None:
                m.write(frame, part.name, with_identity(m, part, rest))
            continue
        if known is not None:
            item = known[place]
        elif isinstance(only, Unknown) and only.key is not None:
            item = unknown(("item", only.key, place))
        else:
            item = element_of(m, value)
        tests.append(matches(m, frame, part, item))
    return all_of(m, tests)


def _mapping(m: Machine, frame: Frame, pattern: ast.MatchMapping, value: Value) -> Value:
    only = value.only
    if isinstance(only, (Const, Items, Tensor)) or _plain(only):
        return NO
    table = only if isinstance(only, Table) else None
    tests = [YES if table is not None else UNKNOWN]
    names = []
    for key, part in zip(pattern.keys, pattern.patterns, strict=True):
        name = m.eval(frame, key).constant
        names.append(name)
        found = table.get(name) if table is not None else None
        if found is None and table is not None and closed(table):
            return NO
        if found is None:
            tests.append(UNKNOWN)
            found = rest_of(table) if table is not None else UNKNOWN
            if isinstance(only, Unknown) and only.key is not None:
                found = unknown(("item", only.key, name))
        tests.append(matches(m, frame, part, found))
    if pattern.rest is not None:
        left = UNKNOWN
        if table is not None:
            entries = tuple(entry for entry in table.entries if entry[0] not in names)
            left = with_identity(m, pattern, of(Table(entries, table.rest, table.keys)))
        m.write(frame, pattern.rest, left)
    return all_of(m, tests)


def _plain(atom: Atom | None) -> bool:
    return isinstance(atom, Instance) and atom.cls.plain


def _object(m: Machine, frame: Frame, pattern: ast.MatchClass, value: Value) -> Value:
    kind = m.eval(frame, pattern.cls).only
    asked = Args([value, m.eval(frame, pattern.cls)])
    tests = [m.call(frame, pattern, of(External("builtins.isinstance")), asked)]
    if definite(tests[0]) is False:
        _bind_anything(m, frame, pattern)
        return NO
    fields = fields_of(m, kind) if isinstance(kind, Class) else ()
    for index, part in enumerate(pattern.patterns):
        item = UNKNOWN
        if isinstance(kind, External) and kind.name.startswith("builtins."):
            item = value
        elif index < len(fields):
            item = m.attribute(frame, pattern, value, fields[index])
        tests.append(matches(m, frame, part, item))
    for name, part in zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True):
        tests.append(matches(m, frame, part, m.attribute(frame, pattern, value, name)))
    return all_of(m, tests)
