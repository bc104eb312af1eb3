"""Evaluation of expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import (
    EMPTY,
    MANY,
    as_key,
    closed,
    concatenated,
    item_parts,
    items,
    merged,
    parts_of,
    rest_of,
    sequence,
)
from gradguard_lint.domain.state import State
from gradguard_lint.domain.unknowns import (
    computed,
    drop_default,
    is_process_specific,
    process_specific,
)
from gradguard_lint.domain.values import (
    NUMBER,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Parts,
    Table,
    Unknown,
    Value,
    constant,
    either,
    guarded,
    is_number,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.attributes import captured
from gradguard_lint.engine.branches import (
    all_of,
    choices_with_truth,
    condition,
    enter_branch,
    fork,
    is_plain,
    negated,
)
from gradguard_lint.engine.containers import element_of, with_identity
from gradguard_lint.engine.flows import iterator
from gradguard_lint.engine.imports import star_import
from gradguard_lint.engine.iteration import iterated, iterated_object, run
from gradguard_lint.engine.lookups import fresh_key
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import as_proved, identified
from gradguard_lint.engine.texts import compose, percent_format
from gradguard_lint.engine.truth import compare_values, truth_of
from gradguard_lint.words import words
from pytest_gradguard.records import replace

BUILTINS = {
    name: of(External(f"builtins.{name}"))
    for name in words(
        "print len range enumerate zip map filter list tuple set dict sorted reversed sum min max "
        "abs float int str bool bytes getattr setattr hasattr isinstance issubclass type super "
        "iter next open any all round id repr vars object property staticmethod classmethod "
        "frozenset slice input callable divmod pow format globals"
    )
}

ENDING = {name: of(External(f"builtins.{name}")) for name in ("exit", "quit")}
"""Names that `site` adds, which programs usually redefine."""

LARGEST_POWER = 64
"""The limit of exponents that are computed."""


FEW = 3
"""The most combinations of operands that are computed separately."""


def on_Constant(m: Machine, frame: Frame, node: ast.Constant) -> Value:
    if node.value is ...:
        return UNKNOWN
    return constant(node.value)


def on_JoinedStr(m: Machine, frame: Frame, node: ast.JoinedStr) -> Value:
    parts: list[str | Value] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            value = m.eval(frame, part.value)
            plain = part.format_spec is None and part.conversion < 0
            parts.append(value if plain else UNKNOWN)
    return compose(parts)


def on_Name(m: Machine, frame: Frame, node: ast.Name) -> Value:
    found = m.lookup(frame, node.id)
    if found is None:
        if node.id in BUILTINS:
            return BUILTINS[node.id]
        if node.id in ("__file__", "__doc__"):
            return UNKNOWN
        star = star_import(m, frame, node.id)
        if star is not None:
            return star
        if node.id in ENDING:
            return ENDING[node.id]
        return (
            m.models.name_from_star(node.id)
            if m.facts.star_imports.get(-frame.root.ident)
            else UNKNOWN
        )
    value, home = as_proved(m, found[0]), found[1]
    if m.place.worker is not None and home.born != m.place.worker.ident:
        return captured(m, frame, node, node.id, value, home)
    return value


def on_NamedExpr(m: Machine, frame: Frame, node: ast.NamedExpr) -> Value:
    value = m.eval(frame, node.value)
    m.write(frame, node.target.id, value)
    return value


def on_Starred(m: Machine, frame: Frame, node: ast.Starred) -> Value:
    return m.eval(frame, node.value)


def on_Await(m: Machine, frame: Frame, node: ast.Await) -> Value:
    value = m.eval(frame, node.value)
    return value.map(lambda atom: m.models.awaited(m, atom))


def _display(m: Machine, frame: Frame, node: ast.expr, kind: str, nodes: list[ast.expr]) -> Value:
    if any(isinstance(item, ast.Starred) for item in nodes):
        strings: list[Parts] = []
        for item in nodes:
            value = m.eval(frame, item)
            if not isinstance(item, ast.Starred):
                strings.append(((value,), None, ()))
                continue
            value = iterated(m, frame, item, value)
            strings.append(parts_of(value, element_of(m, value)))
        made = of(concatenated(Items(kind, (), UNKNOWN), *strings))
    elif len(nodes) > 64:
        parts = [m.eval(frame, item) for item in nodes[:64]]
        made = sequence(join((*parts, UNKNOWN)), kind)
    else:
        made = items(kind, [m.eval(frame, item) for item in nodes])
    return with_identity(m, node, made)


def on_List(m: Machine, frame: Frame, node: ast.List) -> Value:
    return _display(m, frame, node, "list", node.elts)


def on_Tuple(m: Machine, frame: Frame, node: ast.Tuple) -> Value:
    return _display(m, frame, node, "tuple", node.elts)


def on_Set(m: Machine, frame: Frame, node: ast.Set) -> Value:
    return _display(m, frame, node, "set", node.elts)


def on_Dict(m: Machine, frame: Frame, node: ast.Dict) -> Value:
    table = EMPTY
    entries: dict[Hashable, Value] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = m.eval(frame, item)
        if key is None:
            table = replace(table, entries=tuple(entries.items()))
            table = merged(table, m.models.mapping(m, frame, item, value))
            entries = dict(table.entries)
            continue
        name = as_key(m.eval(frame, key))
        if isinstance(name.only, Const):
            entries[name.constant] = value
        else:
            rest = value if closed(table) else join((rest_of(table), value))
            table = replace(table, rest=rest, keys=table.keys and UNKNOWN, perhaps=())
    return with_identity(m, node, of(replace(table, entries=tuple(entries.items()))))


def on_IfExp(m: Machine, frame: Frame, node: ast.IfExp) -> Value:
    test = m.eval(frame, node.test)
    if test.is_nameless:
        test = unknown(fresh_key(m))
    found: list[tuple[Value, Conditions]] = []
    assumed = m.assumed

    def go(branch: ast.expr, truth: bool) -> None:
        implied = m.assumed.facts - assumed.facts  # also what the parts of the test imply
        found.append((m.eval(frame, branch), condition(m, test, truth) | implied))

    if is_plain(m, node):
        for truth, branch in ((True, node.body), (False, node.orelse)):
            m.state.assumed = assumed.copy()
            if enter_branch(m, frame, node.test, test, truth):
                go(branch, truth)
        m.state.assumed = assumed
        return either(found) if found else UNKNOWN

    def way(branch: ast.expr, truth: bool) -> Callable[[], None]:
        return lambda: go(branch, truth)

    fork(m, frame, node.test, test, (way(node.body, True), way(node.orelse, False)))
    return either(found) if found else UNKNOWN


def on_BinOp(m: Machine, frame: Frame, node: ast.BinOp) -> Value:
    left = m.eval(frame, node.left)
    right = m.eval(frame, node.right)
    value = operate(m, frame, node, node.op, left, right)
    return identified(m, frame, node, value, (left, right))


def operate(
    m: Machine, frame: Frame, node: ast.AST, op: ast.operator, left: Value, right: Value
) -> Value:
    """``left op right``."""
    own = _own_operator(m, frame, node, op, left, right)
    if own is not None:
        return own
    if isinstance(op, ast.BitOr):
        one = left.only
        if isinstance(one, Table):
            both = merged(one, m.models.mapping(m, frame, node, right))
            return with_identity(m, node, of(replace(both, ident=0)))
    tensor = m.models.operation(m, frame, node, [left, right], matmul=isinstance(op, ast.MatMult))
    if tensor is not None:
        return tensor
    sequences = [atom for value in (left, right) for atom in value.atoms if isinstance(atom, Items)]
    if (
        not sequences
        and (is_process_specific(left) or is_process_specific(right))
        and not _is_text(left)
    ):
        return process_specific(id(node))
    if isinstance(left.only, Const) and isinstance(right.only, Const):
        a, b = left.only.value, right.only.value
        if isinstance(op, ast.Add) and isinstance(a, str) and isinstance(b, str):
            return constant(a + b)
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            if b == 0 and isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)):
                m.leave_by(ZeroDivisionError)
                return UNKNOWN
            return _calculated(op, a, b)
    if isinstance(op, ast.Add) and (_all_text(left) or _all_text(right)):
        return compose([left, right])
    if isinstance(op, ast.Mod) and isinstance(left.constant, str):
        return percent_format(left.constant, right)
    if _counts(left) and isinstance(right.constant, int):
        return of(Unknown(("int", left.only, type(op).__name__, right.constant)))
    left, right = drop_default(left), drop_default(right)
    # In a loop, alternatives that count up would change in each iteration.
    pairs = len({*left.atoms}) * len({*right.atoms})
    if not sequences and pairs <= (1 if m.place.turns.depth else FEW):
        return left.map(lambda one: right.map(lambda other: _figured(op, one, other)))
    if not sequences and any(map(is_number, (*left.atoms, *right.atoms))):
        return NUMBER
    if sequences and isinstance(op, (ast.Add, ast.Mult)):
        one, other = left.only, right.only
        new = Items(sequences[0].kind, (), UNKNOWN)
        if isinstance(op, ast.Add) and isinstance(one, Items) and isinstance(other, Items):
            return of(concatenated(new, item_parts(one), item_parts(other)))
        held, times = (one, right.constant) if isinstance(one, Items) else (other, left.constant)
        if isinstance(held, Items) and isinstance(times, int) and 0 < times <= MANY:
            return of(concatenated(new, *[item_parts(held)] * times))
        return sequence(join(atom.element for atom in sequences), sequences[0].kind)
    return UNKNOWN


def _figured(op: ast.operator, left: Atom, right: Atom) -> Value:
    """``left op right`` with an unknown operand; equal operands give equal results if both have
    keys."""
    a, b = (atom.value if isinstance(atom, Const) else None for atom in (left, right))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return _calculated(op, a, b)
    if isinstance(op, ast.Mult) and 0 in (a, b) and isinstance(left if b == 0 else right, Unknown):
        return constant(0)
    numeric = is_number(left) or is_number(right)
    key: Key = None
    if numeric or isinstance(a, (int, float)) or isinstance(b, (int, float)):
        key = computed(type(op).__name__, left, right, numeric=numeric)
    if key is not None:
        return unknown(key)
    return NUMBER if numeric else UNKNOWN


def _calculated(op: ast.operator, a: float, b: float) -> Value:
    """``a op b`` for two numbers."""
    if isinstance(op, ast.Pow) and not (isinstance(b, int) and 0 <= b < LARGEST_POWER):
        return UNKNOWN
    calculate = _ON_NUMBERS.get(type(op))
    try:
        return constant(calculate(a, b)) if calculate is not None else UNKNOWN
    except (ArithmeticError, ValueError):
        return UNKNOWN


_ON_NUMBERS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Pow: lambda a, b: a**b,
    ast.Mod: lambda a, b: a % b,
    ast.FloorDiv: lambda a, b: a // b,
}


def _is_text(value: Value) -> bool:
    return isinstance(value.constant, str) or _all_text(value)


def _all_text(value: Value) -> bool:
    """Whether this is certainly a string that is at least partly known."""
    return all(
        isinstance(atom.value, str)
        if isinstance(atom, Const)
        else isinstance(atom, Unknown) and isinstance(atom.key, tuple) and atom.key[0] == "text"
        for atom in value.atoms
    )


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "truediv",
    ast.RShift: "rshift",
    ast.BitOr: "or",
}


def _own_operator(
    m: Machine, frame: Frame, node: ast.AST, op: ast.operator, left: Value, right: Value
) -> Value | None:
    """``left op right`` if a project class overloads the operator."""
    name = _OPERATORS.get(type(op))
    if name is None:
        return None
    for receiver, method, given in ((left, f"__{name}__", right), (right, f"__r{name}__", left)):
        only = receiver.only
        found = m.find_in_class(only.cls, method) if isinstance(only, Instance) else None
        if found is not None and only is not None:
            return m.call(frame, node, m.bind(frame, node, found, only), Args([given]))
    return None


def _counts(value: Value) -> bool:
    """Whether this is an unknown integer."""
    only = value.only
    return isinstance(only, Unknown) and isinstance(only.key, tuple) and only.key[0] == "int"


def on_UnaryOp(m: Machine, frame: Frame, node: ast.UnaryOp) -> Value:
    value = m.eval(frame, node.operand)
    if isinstance(node.op, ast.Not):
        choices = [Choice(negated(m, choice.atom), choice.when) for choice in value.choices]
        return Value(tuple(choices))
    if isinstance(node.op, ast.USub) and isinstance(value.constant, (int, float)):
        return constant(-value.constant)
    tensor = m.models.operation(m, frame, node, [value])
    return tensor if tensor is not None else UNKNOWN


def on_BoolOp(m: Machine, frame: Frame, node: ast.BoolOp) -> Value:
    stop = isinstance(node.op, ast.Or)
    found: list[Value] = []
    ends: list[State] = []
    plain = all(is_plain(m, part) for part in node.values[1:])
    assumed = m.state.assumed
    m.state.assumed = assumed.copy()
    passed = NONE
    for index, part in enumerate(node.values):
        value = guarded(m.eval(frame, part), passed)
        if m.dead:
            break
        truths = {truth_of(atom) for atom in value.atoms}
        if index == len(node.values) - 1 or truths == {stop}:
            found.append(value)
            break
        if truths == {not stop}:
            continue
        if kept := choices_with_truth(m, value, stop):
            found.append(Value(tuple(kept)))
        passed = condition(m, value, not stop)
        if not plain:
            ends.append(m.state.copy())
        if not enter_branch(m, frame, part, value, not stop):
            break
    m.state.assumed = assumed
    if ends:
        m.meet([*ends, m.state])
        m.state.assumed = assumed
    return join(found) if found else UNKNOWN


def on_Compare(m: Machine, frame: Frame, node: ast.Compare) -> Value:
    left = m.eval(frame, node.left)
    tests = []
    for op, item in zip(node.ops, node.comparators, strict=True):
        right = m.eval(frame, item)
        if isinstance(op, (ast.In, ast.NotIn)) and m.models.lacks(m, right, left):
            tests.append(constant(isinstance(op, ast.NotIn)))
            left = right
            continue
        if isinstance(op, (ast.In, ast.NotIn)):
            right = m.iterated(frame, item, right)
        tests.append(_compared(m, frame, node, op, left, right))
        left = right
    return tests[0] if len(tests) == 1 else all_of(m, tests)


def _compared(
    m: Machine, frame: Frame, node: ast.Compare, op: ast.cmpop, left: Value, right: Value
) -> Value:
    tensor = None
    if not isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
        tensor = m.models.operation(m, frame, node, [left, right], smooth=False)
    if tensor is not None:
        return tensor
    return compare_values(op, left, right)


def on_Slice(m: Machine, frame: Frame, node: ast.Slice) -> Value:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            m.eval(frame, part)
    return UNKNOWN


def on_Lambda(m: Machine, frame: Frame, node: ast.Lambda) -> Value:
    frame.shared = True
    defaults = tuple(m.eval(frame, item) for item in node.args.defaults)
    kw_defaults = tuple(
        m.eval(frame, item) if item is not None else None for item in node.args.kw_defaults
    )
    return of(Function(node, frame.module, frame, None, defaults, kw_defaults))


def on_Yield(m: Machine, frame: Frame, node: ast.Yield) -> Value:
    given = m.eval(frame, node.value)
    giver = m.place.yield_receivers.get(frame.ident)
    if giver is not None and not m.dead:
        giver(given)
    return UNKNOWN


def on_YieldFrom(m: Machine, frame: Frame, node: ast.YieldFrom) -> Value:
    value = iterated_object(m, frame, node.value, m.eval(frame, node.value))
    giver = m.place.yield_receivers.get(frame.ident)
    if giver is None or m.dead:
        return UNKNOWN
    return run(m, frame, node, iterator(m, frame, node, value), giver)
