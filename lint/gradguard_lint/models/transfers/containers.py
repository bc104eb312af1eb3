"""Methods of lists, dicts and strings, and their in-place changes."""

from __future__ import annotations

import ast

from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.shapes import (
    ABSENT,
    as_key,
    closed,
    inner,
    item_at,
    items,
    key_value,
    merged,
    parts_of,
    rest_of,
    sequence,
    without_item,
)
from gradguard_lint.domain.values import (
    GRADIENT,
    GRADIENTS,
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Items,
    Site,
    Table,
    Tensor,
    Unknown,
    Value,
    constant,
    join,
    of,
)
from gradguard_lint.engine.arguments import argument_node
from gradguard_lint.engine.attributes import get_or_create
from gradguard_lint.engine.containers import (
    element_of,
    extended,
    item_of_unknown,
    of_pairs,
    with_identity,
)
from gradguard_lint.engine.defaults import off_by_default
from gradguard_lint.engine.lookups import lookup_unknown_key
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.texts import str_format, str_join
from gradguard_lint.words import words
from pytest_gradguard.records import replace


def container_method(
    m: Machine, frame: Frame, node: ast.AST, atom: Atom, name: str, args: Args
) -> Value:
    """A method of a list, dict, string or other plain object."""
    if isinstance(atom, Table):
        first = args.get(0)
        if name in ("get", "pop", "setdefault") and first is not None:
            first = as_key(first)
            if name == "get" and len(first.choices) > 1:
                others = args.positional[1:]
                return first.map(
                    lambda key: container_method(
                        m, frame, node, atom, name, Args([of(key), *others])
                    )
                )
            known = atom.get(first.constant) if isinstance(first.only, Const) else None
            if name == "setdefault" and atom.ident:
                return get_or_create(m, atom, first, args.get(1) or constant(None))
            if known is not None:
                return known
            if isinstance(first.only, Const) and closed(atom):
                return args.get(1) or constant(None)
            default = args.get(1)
            if isinstance(first.only, Const) and (default is None or not atom.rest.is_unknown):
                return rest_of(atom)
            if isinstance(first.only, Const) and default is not None:
                if default.constant is not False:
                    return join((default, UNKNOWN))
                owner = Unknown(("table", atom.ident) if atom.ident else ("node", id(node)))
                return off_by_default(m, item_of_unknown(m, owner, first.constant))
            anything = join([*(value for _, value in atom.entries), rest_of(atom)])
            sure, other = closed(atom), default or constant(None)
            other = other if sure else join((other, rest_of(atom)))
            asked = argument_node(node, 0, "key")
            return lookup_unknown_key(
                m, frame, asked, first, atom.entries, anything, other, closed=sure
            )
        values = [*(value for _, value in atom.entries), rest_of(atom)]
        if name == "values" and closed(atom):
            return items("list", [value for _, value in atom.entries])
        if name == "items" and closed(atom):
            return items(
                "list", [items("tuple", [key_value(key), value]) for key, value in atom.entries]
            )
        if name == "keys" and closed(atom):
            return items("list", [key_value(key) for key, _ in atom.entries])
        if name == "values":
            return sequence(join(values))
        if name == "keys":
            return sequence(element_of(m, of(atom)))
        if name == "items":
            return sequence(items("tuple", [UNKNOWN, join(values)]))
        if name == "copy":
            return with_identity(m, node, of(replace(atom, ident=0)))
        return UNKNOWN
    if isinstance(atom, Items):
        first = args.get(0)
        if (
            name == "append"
            and first is not None
            and (
                loop := next(
                    (site for site in reversed(m.place.turns.sites()) if _is_for(site)), None
                )
            )
            and any(
                isinstance(part, Tensor) and part.ident in (GRADIENT, GRADIENTS)
                for part in inner(first, 2)
            )
        ):
            m.effect(frame, node, "append", LibraryUse("collects gradients", (first,), place=loop))
        if name in ("pop", "popleft"):
            place = _popped(name, args)
            return (item_at(atom, place) if isinstance(place, int) else None) or atom.element
        if name == "copy":
            return with_identity(m, node, of(replace(atom, ident=0)))
        return UNKNOWN
    if isinstance(atom, Const) and isinstance(atom.value, str):
        return _string(atom.value, name, args)
    return UNKNOWN


def _popped(name: str, args: Args) -> object:
    """The index of the item that ``pop()`` removes."""
    if name == "popleft":
        return 0
    place = args.get(0, "index")
    return -1 if place is None else place.constant


def _is_for(site: Site) -> bool:
    return isinstance(site.node, (ast.For, ast.AsyncFor))


_OF_TEXTS = words(
    "capitalize casefold count endswith find index isalpha isdigit isnumeric lower lstrip "
    "partition removeprefix removesuffix replace rpartition rsplit rstrip split splitlines "
    "startswith strip title upper"
)
"""Methods of strings whose result is known if the string and all arguments are."""


def _string(text: str, name: str, args: Args) -> Value:
    if name in _OF_TEXTS and args.rest is None and not args.open and not args.keywords:
        given = [value.only for value in args.positional]
        known = [atom.value for atom in given if isinstance(atom, Const)]
        if len(known) == len(given):
            try:
                made = getattr(text, name)(*known)
            except (TypeError, ValueError):
                return UNKNOWN
            if isinstance(made, (list, tuple)):
                return items(type(made).__name__, map(constant, made))
            return constant(made)
    if name == "format" and args.rest is None and not args.open:
        return str_format(text, args.positional, args.keywords)
    if name == "format":
        return of(Unknown(("text", text.split("{")[0] + "{}")))
    if name == "join":
        return str_join(text, args.get(0) or UNKNOWN)
    if name == "split":
        return sequence(UNKNOWN)
    return UNKNOWN


def updated(
    m: Machine, frame: Frame, node: ast.AST, table: Table, given: Value | None, args: Args
) -> Table:
    """`table` after an update with `given`, a dict or pairs, and the keywords."""
    if given is not None:
        given = m.iterated(frame, node, m.models.mapping(m, frame, node, given))
        table = merged(table, of_pairs(given))
    return merged(table, of(args.named(args.keywords)))


def _ordered(atom: Items) -> Items:
    """`atom`, without positions unless it is a list."""
    return atom if atom.kind == "list" else _placeless(atom)


def _placeless(atom: Items) -> Items:
    """`atom` without known positions."""
    return replace(atom, items=None, ends=None) if atom.items else replace(atom, ends=None)


def changed_container(
    m: Machine, frame: Frame, node: ast.AST, atom: Atom, name: str, args: Args
) -> Value | None:
    """The container after an in-place method; None if it is unchanged."""
    first = args.get(0)
    if isinstance(atom, Items):
        if name in ("append", "add", "put"):
            return of(extended(m, _ordered(atom), ((first or UNKNOWN,), None, ())))
        if name == "appendleft":
            return of(extended(m, _ordered(atom), ((first or UNKNOWN,), None, ()), 0))
        if name == "insert":
            at = args.constant(0)
            new = ((args.get(1) or UNKNOWN,), None, ())
            return of(
                extended(m, atom, new, at)
                if isinstance(at, int)
                else extended(m, _placeless(atom), new)
            )
        if name in ("pop", "popleft") and (atom.items is not None or atom.ends):
            place = _popped(name, args)
            left = without_item(atom, constant(place)) if place is not None else None
            return of(left or replace(atom, ends=None))
        if name == "clear":
            return of(replace(atom, items=(), element=UNKNOWN, ends=None))
        if name in ("extend", "update"):
            given = parts_of(first, element_of(m, first)) if first else ((), UNKNOWN, ())
            return of(extended(m, _ordered(atom), given))
        anyhow = atom.ends and name in ("remove", "reverse", "rotate", "sort", "extendleft")
        return of(replace(atom, ends=None)) if anyhow else None
    if isinstance(atom, Table) and name == "clear":
        return of(replace(atom, entries=(), rest=ABSENT, keys=None, perhaps=()))
    if isinstance(atom, Table) and name == "pop" and first is not None:
        return of(without_item(atom, first) or atom)
    if isinstance(atom, Table) and name == "setdefault" and atom.ident:
        return None  # already done
    if isinstance(atom, Table) and name == "setdefault":
        default = args.get(1) or constant(None)
        first = as_key(first) if first is not None else None
        if first is not None and isinstance(first.only, Const) and closed(atom):
            if atom.get(first.constant) is not None:
                return None
            if not any(isinstance(part, (Items, Table)) for part in default.atoms):
                return of(replace(atom, entries=(*atom.entries, (first.constant, default))))
        return of(replace(atom, rest=rest_of(atom)))
    if isinstance(atom, Table) and name == "update":
        return of(updated(m, frame, node, atom, first, args))
    return None
