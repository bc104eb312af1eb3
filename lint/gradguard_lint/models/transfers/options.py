"""Command-line options: argparse's and click's."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Choice,
    Class,
    Frame,
    Function,
    Instance,
    Table,
    Thing,
    Unknown,
    Value,
    guarded,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.attribute_tables import OPEN, attributes_of, may_get_more
from gradguard_lint.words import words
from pytest_gradguard.records import replace

_SWITCHES: dict[Hashable, bool] = {"store_true": False, "store_false": True}
"""The defaults of flags, by action."""


_CLOSED = words(
    "add_argument parse_args parse_known_args add_argument_group add_mutually_exclusive_group "
    "set_defaults error exit format_help format_usage print_help print_usage"
)
"""The methods of a parser that add no unknown option."""


def parser(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``ArgumentParser(...)``."""
    made = Thing("parser", name, m.ident_at(node), m.worker_ident)
    if args.open or "parents" in args.keywords:
        may_get_more(m, made)
    return of(made)


def parser_method(
    m: Machine, frame: Frame, node: ast.AST, parser: Thing, name: str, args: Args
) -> Value:
    """argparse: an option's default is the program's value unless the user sets it."""
    if name not in _CLOSED or args.open or (name.startswith("parse") and any(_namespaces(args))):
        may_get_more(m, parser)
    if name == "set_defaults":
        said = _give if ROOT in dict(parser.parts) else _set_default
        for named, value in args.keywords.items():
            said(m, parser, named, value)
        return NOTHING
    if name == "add_argument":
        dest = _option_name(args, args.get(None, "dest"))
        if dest is None:
            may_get_more(m, parser)
            return NOTHING
        key = ("option", parser.ident, dest)
        fixed = m.read(parser.ident, _FIXED + dest)
        m.store.drop((parser.ident, _FIXED + dest))
        other = fixed is None and m.read(parser.ident, dest) is not None
        default = args.get(None, "default") or fixed
        value = option_value(m, key, default, () if other else _choices(args))
        action = args.constant(None, "action")
        if action in _SWITCHES:
            m.facts.defaults.setdefault(key, (_SWITCHES[action],))
        _give(m, parser, dest, value)
        return NOTHING
    if name == "add_subparsers":
        return _commands(m, node, parser, args)
    if name == "add_parser":
        return _command(m, node, parser, args)
    if name in ("parse_args", "parse_known_args"):
        if ROOT in dict(parser.parts):
            return UNKNOWN
        space = of(Thing("namespace", "argparse", parser.ident))
        return space if name == "parse_args" else items("tuple", [space, UNKNOWN])
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return of(parser)
    return UNKNOWN


ROOT, COMMAND = "root", "command"
"""The parts of a parser of subcommands: the parser that gets its options, under the condition that
the command is selected; and the selected command."""


def _roots(parser: Thing) -> Value:
    return parser.part(ROOT) or of(parser)


def _give(m: Machine, parser: Thing, dest: str, value: Value) -> None:
    """Set `value` as the parsed `dest` of `parser`, joined with that of other commands."""
    for root in _roots(parser).choices:
        if isinstance(root.atom, Thing):
            before = None if root.atom is parser else m.read(root.atom.ident, dest)
            given = guarded(value, root.when)
            m.set_field(root.atom.ident, dest, given if before is None else join((before, given)))


def _commands(m: Machine, node: ast.AST, parser: Thing, args: Args) -> Value:
    """``parser.add_subparsers(...)``."""
    name = args.constant(None, "dest")
    key: Key = ("option", parser.ident, name or m.ident_at(node))
    chosen = unknown(key)
    if isinstance(name, str):
        _give(m, parser, name, chosen)
    parts = ((ROOT, _roots(parser)), (COMMAND, chosen))
    return of(Thing("parser", "subparsers", m.ident_at(node), m.worker_ident, parts=parts))


def _command(m: Machine, node: ast.AST, commands: Thing, args: Args) -> Value:
    """``subparsers.add_parser("name")``."""
    root, name = _roots(commands), args.constant(0, "name")
    chosen = commands.part(COMMAND)
    only = chosen.only if chosen is not None else None
    if isinstance(only, Unknown) and isinstance(name, str) and args.get(None, "aliases") is None:
        root = guarded(root, frozenset({(("eq", only.key, name), True)}))
    parts = ((ROOT, root),)
    return of(Thing("parser", "subparser", m.ident_at(node), m.worker_ident, parts=parts))


_FIXED = "<default>"
"""Prefix of store keys for values of `set_defaults`."""


def _set_default(m: Machine, parser: Thing, dest: str, value: Value) -> None:
    """Set an option's default, or a value that no option changes."""
    fixed = m.read(parser.ident, dest) is None or m.read(parser.ident, _FIXED + dest) is not None
    if fixed:
        m.set_field(parser.ident, _FIXED + dest, value)
    else:
        value = option_value(m, ("option", parser.ident, dest), value)
    m.set_field(parser.ident, dest, value)


def _option_name(args: Args, given: Value | None = None) -> str | None:
    """The attribute name of an option."""
    texts = [it.constant for it in args.positional if isinstance(it.constant, str)]
    if not texts:
        return None
    if given is not None and isinstance(given.constant, str):
        return given.constant
    plain = [text for text in texts if not text.startswith("-")]
    long = next(
        (text for text in [*plain, *texts] if text[:1] != "-" or text[:2] == "--"), texts[0]
    )
    return long.lstrip("-").partition("/")[0].replace("-", "_")


def _choices(args: Args) -> tuple[Hashable, ...]:
    """The choices of an option, if it declares them."""
    if args.open or args.perhaps or "nargs" in args.keywords:
        return ()
    action = args.get(None, "action")
    if action is None:
        values = known_items(args.get(None, "choices") or UNKNOWN)
    else:
        values = (args.get(None, "const") or UNKNOWN,) if action.constant == "store_const" else None
    known = tuple(it.constant for it in values or ())
    return () if None in known else known


def option_value(
    m: Machine, key: Key, default: Value | None, given: tuple[Hashable, ...] = ()
) -> Value:
    """The value of an option: its default, or anything; limited to the choices `given`, if any."""
    value = unknown(key)
    known = default.constants() if default is not None else []
    if default is None or len(known) != len(default.choices):
        return value
    m.facts.defaults[key] = tuple(known)
    if given and None not in known:
        among = (("among", key, tuple(dict.fromkeys((*given, *known)))), True)
        value = Value(tuple(Choice(it.atom, it.when | {among}) for it in value.choices))
    chosen = [
        Choice(choice.atom, choice.when | {(("eq", key, it), True)})
        for choice, it in zip(default.choices, known, strict=True)
    ]
    return Value((*value.choices, *chosen))


def option(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``click.option(...)``: a decorator that passes an argument."""
    called = _option_name(args)
    if called is None:
        return UNKNOWN
    default = args.get(None, "default")
    return of(Thing("option", called, parts=() if default is None else (("default", default),)))


def with_option(m: Machine, function: Value, given: Thing) -> Value:
    """`function` with the option as the default of its argument."""

    def change(atom: Atom) -> Value:
        if not isinstance(atom, Function):
            return of(atom)
        command = m.ident_of(("command", atom.node))
        value = option_value(m, ("option", command, given.name), given.part("default"))
        spec = atom.node.args
        names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
        kept: list[Value] = [UNKNOWN] * (len(names) - len(atom.defaults)) + [*atom.defaults]
        if given.name in names:
            kept[names.index(given.name)] = value
            return of(replace(atom, defaults=tuple(kept)))
        return of(atom)

    return function.map(change)


def configuration(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``OmegaConf.create({...})``: a dict, or a class with defaults, as attributes."""
    given = args.get(*row.argument) or args.get(0)
    if given is None:
        return UNKNOWN
    return given.map(lambda atom: _configured(m, frame, node, name, atom))


def _configured(
    m: Machine, frame: Frame, node: ast.AST, name: str, atom: Atom, *path: object
) -> Value:
    if isinstance(atom, Class):
        return m.call(frame, node, of(atom), Args())
    if isinstance(atom, Table):

        def part(key: object, value: Value) -> Value:
            if not any(value.of(Table)):
                return value
            return value.map(lambda held: _configured(m, frame, node, name, held, *path, key))

        parts = [(str(key), part(key, value)) for key, value in atom.entries]
        return of(Thing("namespace", name, m.ident_at(node, *path), parts=tuple(parts)))
    return of(atom) if path or isinstance(atom, Instance) else UNKNOWN


def _namespaces(args: Args) -> Iterator[Value]:
    """The namespace argument that options are added to."""
    return (it for it in (args.get(1), args.get(None, "namespace")) if it is not None)


def lacks(m: Machine, atom: Atom, name: str) -> bool:
    """Whether the parsed arguments `atom` certainly have no attribute of that name: there is no
    such option, and nothing has set it."""
    if not isinstance(atom, Thing) or (atom.kind, atom.name) != ("namespace", "argparse"):
        return False
    known = {field for field, _ in m.fields(atom.ident)}
    return bool(known) and known.isdisjoint((name, OPEN)) and not name.startswith("_")


def namespace_attribute(m: Machine, thing: Thing, name: str) -> Value:
    """``args.name``."""
    if name == "__dict__":
        return attributes_of(thing)
    value = m.read(thing.ident, name) if thing.ident else None
    if value is None:
        value = thing.part(name)
    elif m.read(thing.ident, OPEN) is not None and value == m.read(thing.ident, _FIXED + name):
        return option_value(m, ("option", thing.ident, name), value)  # there may be such an option
    return value if value is not None else unknown(("attr", ("namespace", thing.ident), name))
