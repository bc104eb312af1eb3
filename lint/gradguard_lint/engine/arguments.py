"""Arguments of calls, and how they are bound to parameters."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import (
    ABSENT,
    EMPTY,
    closed,
    fill_absent,
    item_at_unknown_position,
    items,
    items_by_position,
    merged,
    rest_of,
    sequence,
)
from gradguard_lint.domain.values import (
    UNKNOWN,
    Const,
    Frame,
    Function,
    Items,
    Unknown,
    Value,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.containers import element_of, store_contents
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import as_proved
from pytest_gradguard.records import replace

SOME = 3
"""The number of arguments that stands for an unknown one."""


def arguments(m: Machine, frame: Frame, node: ast.Call) -> Args:
    args = Args(written=True)
    for item in node.args:
        if isinstance(item, ast.Starred):
            value = m.iterated(frame, item, m.eval(frame, item.value))
            given = items_by_position(value) if args.rest is None else None
            args.written = args.written and frame.module.is_stub and is_tuple(value)
            if given is not None:
                args.positional.extend(given)
            else:
                args.rest = element_of(m, value)
        else:
            value = m.eval(frame, item)
            if args.rest is None:
                args.positional.append(value)
            else:
                args.rest = join((args.rest, value))
    for keyword in node.keywords:
        value = m.eval(frame, keyword.value)
        if keyword.arg is not None:
            args.keywords[keyword.arg] = value
            continue
        mapping = m.models.mapping(m, frame, keyword.value, value)
        args.written = args.written and frame.module.is_stub and closed(merged(EMPTY, mapping))
        _unpack(args, mapping)
    return args


def is_tuple(value: Value) -> bool:
    """Whether `value` is a tuple of known length."""
    return items_by_position(value) is not None and all(
        isinstance(atom, Items) and atom.kind == "tuple" for atom in value.atoms
    )


def _unpack(args: Args, mapping: Value) -> None:
    """Add the keywords of ``**mapping``; keys of only some alternatives are optional."""
    table = merged(EMPTY, mapping)
    if table.keys is not None and all(isinstance(key, Const) for key in table.keys.atoms):
        optional = dict(table.perhaps)
        for key in table.keys.constants():
            if isinstance(key, str):
                args.perhaps[key] = optional.get(key, join((rest_of(table), ABSENT)))
    elif not closed(table):
        args.open = True
    for name, value in table.entries:
        if isinstance(name, str):
            args.keywords.setdefault(name, value)


def argument_node(node: ast.AST, position: int, name: str) -> ast.expr | None:
    """The expression of an argument in the source."""
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    plain = node.args[: position + 1]
    if len(plain) <= position or any(isinstance(item, ast.Starred) for item in plain):
        return None
    return plain[position]


def accepts(function: Function, args: Args) -> bool:
    """Whether `function` accepts `args`; True for decorated ones, which may accept others."""
    code = function.node
    spec = code.args
    if not isinstance(code, ast.Lambda) and code.decorator_list:
        return True
    parameters = [*spec.posonlyargs, *spec.args]
    given = len(args.positional)
    if given > len(parameters) and spec.vararg is None:
        return False
    named = {item.arg for item in parameters[max(given, len(spec.posonlyargs)) :]}
    named.update(item.arg for item in spec.kwonlyargs)
    if spec.kwarg is None and not named.issuperset(args.keywords):
        return False
    needed = {item.arg for item in parameters[given : len(parameters) - len(spec.defaults)]}
    needed.update(
        item.arg
        for item, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        if default is None
    )
    return needed.issubset(args.keywords)


def bind_arguments(m: Machine, inner: Frame, node: ast.AST, function: Function, args: Args) -> None:
    """Bind the arguments of the call `node`, or defaults, to the parameters."""
    spec = function.node.args
    parameters = [*spec.posonlyargs, *spec.args]
    names = [item.arg for item in parameters]
    keywords = dict(args.keywords)
    for index, name in enumerate(names):
        value: Value | None
        if index < len(args.positional):
            value = _split_by_value(args.positional[index], inner, name)
        elif name in keywords:
            value = _split_by_value(keywords.pop(name), inner, name)
        elif args.rest is not None:
            value = item_at_unknown_position(args.rest)
        else:
            offset = index - (len(names) - len(function.defaults))
            value = function.defaults[offset] if 0 <= offset < len(function.defaults) else None
            value = _missing_argument(m, function, name, args, value)
        annotation = parameters[index].annotation
        if isinstance(annotation, (ast.Name, ast.Attribute)) and value.is_unknown:
            value = _annotated(m, function, name, annotation, value)
        m.store[(inner.ident, name)] = value
    for index, item in enumerate(spec.kwonlyargs):
        value = keywords.pop(item.arg, None)
        if value is None:
            value = function.kw_defaults[index] if index < len(function.kw_defaults) else None
            value = _missing_argument(m, function, item.arg, args, value)
        m.store[(inner.ident, item.arg)] = _split_by_value(value, inner, item.arg)
    if spec.vararg is not None:
        extra_items = args.positional[len(names) :]
        if args.rest is not None:
            value = sequence(join((*extra_items, args.rest)), "tuple")
        else:
            value = items("tuple", extra_items)
        m.store[(inner.ident, spec.vararg.arg)] = value
    if spec.kwarg is not None:
        ident = m.ident_at(spec.kwarg, id(node))
        table = replace(args.named(keywords), ident=ident, keywords=True)
        store_contents(m, table)
        m.store[(inner.ident, spec.kwarg.arg)] = of(table)


def _missing_argument(
    m: Machine, function: Function, name: str, args: Args, default: Value | None
) -> Value:
    """The value of the parameter `name`, which `args` may not pass. A library function uses no
    default by itself, so an argument may be anything."""
    if function.module.is_stub and args.may_pass(name) and _optional_argument(args, name) is None:
        return UNKNOWN
    return optional_or_default(m, function.node, name, args, default)


def _split_by_value(value: Value, inner: Frame, name: str) -> Value:
    """`value` with a key, so that an unknown argument is one object each time it is read."""
    if not value.is_nameless or inner.module.is_stub:
        return value
    key = ("given", inner.ident, name)
    return value.map(lambda atom: of(Unknown(key, identity=getattr(atom, "identity", None))))


def _annotated(
    m: Machine, function: Function, name: str, annotation: ast.expr, value: Value
) -> Value:
    """An unknown argument, refined by its annotation."""
    kind = m.eval(function.frame, annotation)
    shown = m.models.annotated(name, kind)
    if shown is None:
        return m.models.of_kind(m, kind) or value
    only = value.only
    if not isinstance(only, Unknown):
        return value
    if only.key is None:
        only = Unknown(("argument", id(function.node), name), only.sent)
    m.facts.evidence.prove(only.subject, shown)
    return as_proved(m, of(only))


def standalone_arguments(m: Machine, function: Function, skip: int) -> Args:
    """Arguments of a function without known calls: anything, or the defaults."""
    spec = function.node.args
    args = Args()
    named = [*spec.posonlyargs, *spec.args]
    for index, item in enumerate(named):
        if index < skip:
            continue
        offset = index - (len(named) - len(function.defaults))
        default = function.defaults[offset] if 0 <= offset < len(function.defaults) else None
        args.keywords[item.arg] = anything_or_default(m, function.node, item.arg, default)
    for index, item in enumerate(spec.kwonlyargs):
        default = function.kw_defaults[index] if index < len(function.kw_defaults) else None
        args.keywords[item.arg] = anything_or_default(m, function.node, item.arg, default)
    args.open = spec.kwarg is not None
    return args


def optional_or_default(
    m: Machine, node: ast.AST, name: str, args: Args, default: Value | None
) -> Value:
    """The argument `name` of the function or class `node`, which `args` may not pass: its default,
    or what they may pass."""
    optional = _optional_argument(args, name)
    if optional is None or default is None:
        return (
            default
            if default and not args.may_pass(name)
            else anything_or_default(m, node, name, default)
        )
    return fill_absent(optional, default)


def _optional_argument(args: Args, name: str) -> Value | None:
    """The optional argument `name`, `ABSENT` where it isn't passed; None if that is unknown."""
    optional = args.perhaps.get(name)
    if optional is None or args.open:
        return None
    is_known = all(of(atom) == ABSENT or not isinstance(atom, Unknown) for atom in optional.atoms)
    return optional if is_known else None


def anything_or_default(m: Machine, node: ast.AST, name: str, default: Value | None) -> Value:
    """The argument `name` of the function or class `node`: anything, or its default."""
    key = ("argument", id(node), name)
    anything = as_proved(m, unknown(key))
    if default is None:
        return anything
    only = default.only
    if isinstance(only, Const):
        when = frozenset({(("eq", key, only.value), True)})
        m.facts.defaults[key] = (only.value,)
        default = Value(tuple(replace(c, when=c.when | when) for c in default.choices))
    return Value((*anything.choices, *default.choices))
