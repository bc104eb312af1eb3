"""Python's built-in functions, as far as values pass through them."""

from __future__ import annotations

import ast
import builtins
from functools import partial

from gradguard_lint.domain.conditions import plain_condition
from gradguard_lint.domain.questions import Key, is_question, length_subject
from gradguard_lint.domain.shapes import (
    EMPTY,
    as_uncertain,
    item_parts,
    items,
    known_items,
    sequence,
    sliced,
)
from gradguard_lint.domain.unknowns import (
    computed,
    drop_default,
    is_process_specific,
    process_specific,
)
from gradguard_lint.domain.values import (
    COUNT,
    NOTHING,
    NUMBER,
    UNKNOWN,
    WIDTH,
    Atom,
    Const,
    Frame,
    Generator,
    Instance,
    Items,
    ProjectModule,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    is_number,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.branches import condition, definite
from gradguard_lint.engine.containers import (
    concatenate,
    element_of,
    length,
    whole,
    with_identity,
    with_length_of,
)
from gradguard_lint.engine.defaults import off_by_default
from gradguard_lint.engine.flows import flow
from gradguard_lint.engine.iteration import is_lazy, iterated_object, next_item
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.truth import as_unknown, compare
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import module_parts
from gradguard_lint.models.transfers.attribute_tables import (
    any_attribute_of,
    attributes_of,
    set_named,
)
from gradguard_lint.models.transfers.containers import updated
from gradguard_lint.models.transfers.tensors import operation
from gradguard_lint.models.transfers.type_questions import has_attribute, is_of
from gradguard_lint.models.transfers.wrapping import OF_CLASSES, mark
from gradguard_lint.words import words
from pytest_gradguard.records import replace

COUNTED = 3
"""The most items that are paired individually."""

ITERATING = words("list tuple iter next sum set sorted")
"""Functions that iterate their arguments."""

CONSUMING = words("dict min max any all frozenset reversed")
"""Functions that iterate generators."""


def builtin(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A built-in function."""
    short = name.rpartition(".")[2]
    first = args.get(0)
    if short in ("next", "anext") and first is not None:
        only = first.only
        if isinstance(only, Generator):
            return next_item(m, frame, node, only, args.get(1))
    if short == "iter" and first is not None:
        return iterated_object(m, frame, node, first).map(_iterator)
    if short in _LAZY and args.positional:
        return _LAZY[short](m, frame, node, args)
    if short == "zip" and args.rest is not None:
        rows = args.rest.only
        if isinstance(rows, Items) and rows.items is not None:
            return items("generator", [sequence(item, "tuple") for item in rows.items])
        return sequence(sequence(element_of(m, args.rest), "tuple"), "generator")
    if short in ITERATING:
        args.positional = [m.iterated(frame, node, it) for it in _given(m, frame, node, args)]
        first = args.get(0)
    elif short in CONSUMING:
        args.positional = [m.iterated(frame, node, value) for value in args.positional]
        first = args.get(0)
    if short in ("list", "tuple"):
        if first is None:
            return with_identity(m, node, items(short, []))
        only = first.only
        if isinstance(only, Items):
            made = with_identity(m, node, of(replace(only, kind=short, ident=0, count=None)))
            return with_length_of(m, first, made)
        known = known_items(first)
        if known is not None:
            return with_identity(m, node, items(short, known))
        if isinstance(only, Tensor):
            return sequence(element_of(m, first), short)
        return with_length_of(
            m, first, with_identity(m, node, sequence(element_of(m, first), short))
        )
    if short == "dict":
        return with_identity(m, node, of(updated(m, frame, node, EMPTY, first, args)))
    if short == "range":
        numbers = unknown(("int", id(node), *_least(args)))
        if _one_turn(args):  # what is done with this number is done with any
            return items("range", [numbers])
        return of(Items("range", None, numbers, count=_turns(args)))
    if short == "sum" and first is not None:
        start = args.get(1, "start")
        if start is not None and any(start.of(Items)):
            now = whole(m, first)
            each = known_items(now) or (element_of(m, now),)
            return concatenate(m, (start, *each)) or UNKNOWN
        element = element_of(m, first)
        if all(map(is_number, element.atoms)):
            return NUMBER
        return operation(m, frame, node, [element]) or UNKNOWN
    if short in ("min", "max") and args.rest is not None:
        return join((*args.positional, args.rest))
    if short in ("min", "max") and first is not None:
        if len(args.positional) > 1:
            return _extreme(m, short, args.positional)
        element = element_of(m, first)
        return as_uncertain(element) if "default" in args.keywords else element
    if short == "next" and first is not None:
        element = element_of(m, first)
        return as_uncertain(element) if len(args.positional) > 1 else element
    if short == "str" and first is not None:
        return process_specific(id(node)) if is_process_specific(first) else first.map(_as_text)
    if short in ("int", "bool", "float") and first is not None:
        if any(first.tensors()):
            return NUMBER
        if is_process_specific(first):
            return process_specific(id(node))
        return drop_default(first).map(lambda atom: _number(short, atom, args))
    if short in ("round", "abs", "pow") and first is not None and any(map(is_number, first.atoms)):
        return figured(short, args)
    if short in ("all", "any") and first is not None:
        return NUMBER
    if short == "len" and first is not None:
        return drop_default(first).map(lambda atom: _length(m, atom))
    if short == "getattr" and len(args.positional) >= 2:
        wanted = args.positional[1].constant
        if isinstance(wanted, str):
            found = m.attribute(frame, node, args.positional[0], wanted)
            if len(args.positional) < 3:
                return found
            off = args.positional[2].constant is False
            return off_by_default(m, found) if off else as_uncertain(found)
        owner = args.positional[0]
        return module_parts.named(m, owner) or owner.map(lambda atom: any_attribute_of(m, atom))
    if short == "hasattr" and len(args.positional) == 2:
        return has_attribute(m, *args.positional)
    if short == "setattr" and len(args.positional) == 3:
        owner, wanted, value = args.positional
        only, field = owner.only, wanted.constant
        if isinstance(only, Instance) and field is None:
            for name, held in m.fields(only.ident):
                m.store[only.ident, name] = as_uncertain(held)
        if only is not None and set_named(m, frame, node, only, field, value):
            return NOTHING
        if isinstance(only, (Tensor, Unknown)) and isinstance(field, str):
            m.models.set_attribute(m, frame, _attribute(node, field), only, value)
        return NOTHING
    if short in ("type", "callable") and len(args.positional) == 1:
        only = args.positional[0].only
        return unknown(computed(short, only, numeric=False)) if only is not None else UNKNOWN
    if short == "isinstance":
        return is_of(m, *args.positional) if len(args.positional) == 2 else UNKNOWN
    if short in OF_CLASSES:
        return mark(first or UNKNOWN, *OF_CLASSES[short])
    if short == "vars" and first is not None:
        return first.map(attributes_of)
    if short == "globals":
        return attributes_of(ProjectModule(frame.module.name))
    return UNKNOWN


def _given(m: Machine, frame: Frame, node: ast.AST, args: Args) -> list[Value]:
    """The positional arguments, with objects as iterated."""
    return [iterated_object(m, frame, node, value) for value in args.positional]


def _enumerate(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
    value = _given(m, frame, node, args)[0]
    least = (args.get(1, "start") or constant(0)).constant
    number = unknown(("int", id(node), *((least,) if isinstance(least, int) else ())))

    def whole(values: list[Value]) -> Value:
        known = known_items(values[0])
        if known is not None and len(known) <= COUNTED and isinstance(least, int):
            pairs = [items("tuple", [constant(n), item]) for n, item in enumerate(known, least)]
            return items("generator", pairs)
        only, element = values[0].only, element_of(m, values[0])
        if isinstance(only, Items) and only.ends and isinstance(least, int):
            head = item_parts(only)[0]
            (count,) = number.of(Unknown)
            numbered = [
                guarded(item, frozenset({(("eq", count.key, n), True)}))
                for n, item in enumerate(head, least)
            ]
            element = join((*numbered, sliced(only, slice(len(head), None)).element))
        return sequence(items("tuple", [number, element]), "generator")

    if not is_lazy([value]):
        return whole([value])
    return flow(m, frame, node, [value], lambda row: items("tuple", [number, row[0]]), whole)


def _zip(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
    values = _given(m, frame, node, args)

    def whole(values: list[Value]) -> Value:
        columns = [known_items(value) for value in values]
        if columns and all(row is not None and len(row) <= COUNTED for row in columns):
            paired = zip(*(row or () for row in columns), strict=False)
            return items("generator", [items("tuple", pair) for pair in paired])
        return sequence(items("tuple", [element_of(m, value) for value in values]), "generator")

    if not is_lazy(values):
        return whole(values)
    return flow(m, frame, node, values, lambda row: items("tuple", row), whole)


def _map(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
    function, *values = _given(m, frame, node, args)
    if not values:
        return UNKNOWN

    def whole(values: list[Value]) -> Value:
        m.place.turns.depth += 1  # it is called for each item
        try:
            result = m.call(frame, node, function, Args([element_of(m, value) for value in values]))
        finally:
            m.place.turns.depth -= 1
        return sequence(result, "generator")

    return flow(m, frame, node, values, lambda row: m.call(frame, node, function, Args(row)), whole)


def _filter(m: Machine, frame: Frame, node: ast.AST, args: Args) -> Value:
    function, *values = _given(m, frame, node, args)
    if not values:
        return UNKNOWN

    def kept(row: list[Value]) -> Value | None:
        test = m.call(frame, node, function, Args(row))
        return row[0] if definite(test) is not False else None

    def whole(values: list[Value]) -> Value:
        element = element_of(m, values[0])
        m.call(frame, node, function, Args([element]))
        return sequence(element, "generator")

    return flow(m, frame, node, values[:1], kept, whole)


_LAZY = {"enumerate": _enumerate, "zip": _zip, "map": _map, "filter": _filter}
"""Lazy functions."""


def _iterator(atom: Atom) -> Value:
    """An iterator over `atom`; a loader's iterator is no loader."""
    if isinstance(atom, Thing):
        return UNKNOWN
    return of(replace(atom, ident=0) if isinstance(atom, (Items, Table)) else atom)


def _least(args: Args) -> tuple[int, ...]:
    """The first number of ``range(...)``, if it is known and the smallest."""
    bounds = [value.constant for value in args.positional]
    first = bounds[0] if bounds[1:] else 0
    step = bounds[2] if bounds[2:] else 1
    return (first,) if isinstance(first, int) and isinstance(step, int) and step > 0 else ()


def _turns(args: Args) -> Key:
    """The key of the length of ``range(n)``, if `n` has one."""
    only = args.positional[0].only if len(args.positional) == 1 else None
    return only.key if isinstance(only, Unknown) else None


def _one_turn(args: Args) -> bool:
    """Whether ``range(...)`` has exactly one number."""
    bounds = [value.constant for value in args.positional]
    if len(bounds) == 1:
        return bounds == [1]
    first, last = bounds if len(bounds) == 2 else (None, None)
    return isinstance(first, int) and isinstance(last, int) and last - first == 1


def _extreme(m: Machine, name: str, values: list[Value]) -> Value:
    """``min(...)`` or ``max(...)`` of several values."""
    if sum(any(value.of(Unknown)) for value in values) > 1:
        values = [*map(drop_default, values)]
    made, *others = values
    for other in others:
        if len(made.choices) * len(other.choices) > WIDTH:
            return join(values)
        made = made.map(partial(_further, m, name, other))
    return made


def _further(m: Machine, name: str, other: Value, atom: Atom) -> Value:
    return other.map(partial(_one_of_two, m, name, atom))


def _one_of_two(m: Machine, name: str, atom: Atom, other: Atom) -> Value:
    numbers = [
        it.value
        for it in (atom, other)
        if isinstance(it, Const) and isinstance(it.value, (int, float))
    ]
    if len(numbers) == 2:
        return constant(min(numbers) if name == "min" else max(numbers))
    if numbers:
        open_ = other if isinstance(atom, Const) else atom
        if name == "min" and numbers == [1] and _counts(open_):
            return constant(1)  # of none there is nothing to do
        return _bounded(m, name, numbers[0], open_)
    key = computed(name, atom, other)
    return join((of(atom), of(other))) if key is None else unknown(key)


def _counts(atom: Atom) -> bool:
    """Whether this is a number of items."""
    return atom in COUNT.atoms or (
        isinstance(atom, Unknown) and length_subject(atom.key) is not None
    )


def _bounded(m: Machine, name: str, bound: float, atom: Atom) -> Value:
    """`atom` limited by `bound`."""
    limit = constant(bound)
    beyond = of(compare(ast.GtE() if name == "min" else ast.LtE(), atom, limit.choices[0].atom))
    return join(
        (guarded(limit, condition(m, beyond, True)), guarded(of(atom), condition(m, beyond, False)))
    )


def _number(kind: str, atom: Atom, args: Args) -> Value:
    """``int(value)``, ``float(value)``, ``bool(value)``."""
    key = atom.key if isinstance(atom, Unknown) else None
    if kind == "bool" and key is not None:
        return of(atom if is_question(key) else Unknown(("not", ("not", key))))
    if is_question(key):
        pairs = ((constant(int(truth)), plain_condition(key, truth)) for truth in (True, False))
        return join(guarded(value, frozenset((when,))) for value, when in pairs)
    if isinstance(atom, Const):
        try:
            return constant(getattr(builtins, kind)(atom.value))
        except (TypeError, ValueError, OverflowError):
            pass
    return _numeric(kind, atom, *(value.only or Unknown() for value in args.positional[1:]))


def figured(name: str, args: Args) -> Value:
    """The number computed by `name`, equal for equal arguments."""
    if not args.positional or args.keywords or args.rest is not None:
        return NUMBER
    first, *others = map(drop_default, args.positional)
    return first.map(lambda atom: _numeric(name, atom, *(it.only or Unknown() for it in others)))


def _numeric(name: str, *given: Atom) -> Value:
    key = computed(name, *given)
    return NUMBER if key is None else unknown(key)


def _length(m: Machine, atom: Atom) -> Value:
    """``len(it)``."""
    if isinstance(atom, Const) and isinstance(atom.value, str):
        return constant(len(atom.value))
    modules = module_parts.count(m, atom)
    return of(length(m, as_unknown(atom))) if modules is None else constant(modules)


def _as_text(atom: Atom) -> Value:
    if isinstance(atom, Const):
        return constant(str(atom.value))
    if isinstance(atom, Thing) and atom.kind == "device":
        return constant(atom.name)
    return unknown(("str", atom.key)) if isinstance(atom, Unknown) and atom.key else UNKNOWN


def _attribute(node: ast.AST, name: str) -> ast.Attribute:
    """The target of ``setattr(owner, name, value)``."""
    owner = node.args[0] if isinstance(node, ast.Call) and node.args else ast.Name("...")
    return ast.copy_location(ast.Attribute(owner, name, ast.Store()), owner)
