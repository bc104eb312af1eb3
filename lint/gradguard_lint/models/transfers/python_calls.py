"""The standard library, as far as values pass through it."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import ABSENT, as_uncertain, items, known_items, sequence
from gradguard_lint.domain.values import (
    NOTHING,
    NUMBER,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    External,
    Frame,
    Instance,
    Items,
    Partial,
    Table,
    Tensor,
    Thing,
    Value,
    join,
    of,
)
from gradguard_lint.engine.attributes import item
from gradguard_lint.engine.containers import concatenate, element_of, with_identity
from gradguard_lint.engine.containers import whole as whole_of
from gradguard_lint.engine.flows import chained, first_items
from gradguard_lint.engine.imports import import_named
from gradguard_lint.engine.iteration import is_lazy
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import builtin_calls, estimators, frozen, torch_modules
from gradguard_lint.models.transfers.tensors import operation
from gradguard_lint.models.transfers.wrapping import goes_through
from pytest_gradguard.records import replace


def identity(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """Functions that return their argument, or a shallow copy."""
    value = args.get(*row.argument, "iterable") or args.get(0) or UNKNOWN
    if row.keeps:
        value = value.map(lambda atom: goes_through(m, atom))
    if row.keeps and is_lazy([value]):
        return value
    value = m.iterated(frame, node, value)
    if row.flag == "list" and args.get(*row.argument) is None:
        value = items("list", ())
    if not any(isinstance(atom, (Items, Table)) for atom in value.atoms):
        return value
    forgets = args.get(None, "maxlen") is not None

    def copied(atom: Atom) -> Value:
        if isinstance(atom, Items) and atom.items is not None:
            held = atom.items[::-1] if row.flag == "reversed" else atom.items
            return of(replace(atom, items=None if forgets else held, ident=0))
        if isinstance(atom, Items):
            head, middle, tail = atom.ends or ((), None, ())
            ends = atom.ends if row.flag == "list" and not forgets else None
            new = replace(atom, ident=0, count=None, ends=ends)  # it may grow from here on
            if row.flag == "reversed":
                turned = (tail[::-1], middle, head[::-1]) if atom.ends else None
                new = replace(new, kind="list", ends=turned)  # numbers become smaller
            return of(new)
        return of(replace(atom, ident=0) if isinstance(atom, Table) else atom)

    return with_identity(m, node, value.map(copied))


def number(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """Functions that return a number; without a `flag`, equal for equal arguments."""
    return NUMBER if row.flag else builtin_calls.figured(name, args)


def thing(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An object of a library class, by its kind."""
    given = args.get(*row.argument) if row.argument[1] else None
    return of(
        Thing(
            row.kind,
            name,
            m.ident_at(node),
            m.worker_ident,
            row.gpu,
            parts=() if given is None else ((row.argument[1], given),),
            site=m.site(frame, node),
        )
    )


def made_of(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An object that stores its arguments, except `...`."""
    parts = dict(args.keywords)
    position, word = row.argument
    if word and position < len(args.positional):
        parts[word] = args.positional[position]
    stored = {key: value for key, value in parts.items() if value.constant is not Ellipsis}
    return of(Thing(row.kind, name, parts=tuple(stored.items())))


def distinct(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``enum.auto()``: a unique value."""
    return of(Const((name, id(node)), name))


def copied(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``copy.deepcopy(...)``."""
    return _copied(m, node, args.get(0) or UNKNOWN, set())


def partial(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``functools.partial(...)``."""
    if not args.positional:
        return UNKNOWN
    function, *given = args.positional
    method = row.flag == "method"
    return of(Partial(function, tuple(given), args.pairs(), method, args.written))


def wraps(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``functools.wraps(f)``: a decorator that returns its argument; ``update_wrapper(g, f)`` does
    so directly."""
    wrapper = args.get(0, "wrapper") if name.endswith("update_wrapper") else None
    return wrapper if wrapper is not None else of(External("copy.copy"))


def chain(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``itertools.chain(...)``."""

    def whole(values: list[Value]) -> Value:
        return sequence(join(element_of(m, it) for it in values), "generator")

    if name.endswith("from_iterable"):
        rows = whole_of(m, m.iterated(frame, node, args.get(0) or UNKNOWN))
        known = known_items(rows)
        values = [*known] if known is not None else [element_of(m, rows)]
    else:
        values = [whole_of(m, value) for value in args.values()]
    if is_lazy(values):
        return chained(m, frame, node, values, whole)
    return whole(values)


def islice(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``itertools.islice(...)``."""
    value = args.get(*row.argument) or UNKNOWN
    if not is_lazy([value]):
        return identity(m, frame, node, name, args, row)
    count = args.positional[1].constant if len(args.positional) == 2 else None
    return first_items(m, frame, node, value, count if isinstance(count, int) else None)


def import_module(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``importlib.import_module(name)``."""
    wanted = args.constant(0, "name")
    if not isinstance(wanted, str) or wanted.startswith("."):
        return UNKNOWN
    return import_named(m, frame, node, wanted)


def product(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``itertools.product(...)``."""
    parts = [element_of(m, value) for value in args.positional]
    if name.endswith("product") and parts and "repeat" not in args.keywords:
        return sequence(items("tuple", parts), "generator")
    return sequence(UNKNOWN, "generator")


def fold(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``functools.reduce(f, values)``."""
    element = element_of(m, whole_of(m, args.get(1) or UNKNOWN))
    given = Args([args.get(2) or element, element])
    return as_uncertain(
        m.call(frame, node, args.get(0) or UNKNOWN, given)
    )  # for one item, it is that


def operator(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``operator.add(a, b)``."""
    if name.endswith(("add", "concat")) and (both := concatenate(m, args.values())) is not None:
        return both
    return operation(m, frame, node, list(args.values())) or UNKNOWN


def leave(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``sys.exit()``, ``quit()``: nothing follows, except handlers."""
    if row.flag == "raises":
        m.leave_by(None)
    else:
        m.die()
    return NOTHING


def namespace(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``types.SimpleNamespace(...)``."""
    return of(Thing("namespace", name, m.ident_at(node), parts=tuple(args.keywords.items())))


def getter(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``attrgetter(...)``, with its names."""
    if args.rest is not None or args.open or not args.positional:
        return UNKNOWN
    parts = [(str(index), value) for index, value in enumerate(args.positional)]
    return of(Thing("getter", name, parts=(*parts, *args.keywords.items())))


def ask_getter(m: Machine, frame: Frame, node: ast.AST, thing: Thing, args: Args) -> Value:
    """``getter(it)``."""
    receiver = args.get(0)
    if receiver is None:
        return UNKNOWN
    given = [value for name, value in thing.parts if name.isdigit()]
    if thing.name.endswith("methodcaller"):
        method = _dotted(m, frame, node, receiver, given[0])
        keywords = {name: value for name, value in thing.parts if not name.isdigit()}
        return m.call(frame, node, method, Args(given[1:], keywords))
    ask = item if thing.name.endswith("itemgetter") else _dotted
    results = [ask(m, frame, node, receiver, part) for part in given]
    return results[0] if len(results) == 1 else items("tuple", results)


def _dotted(m: Machine, frame: Frame, node: ast.AST, receiver: Value, name: Value) -> Value:
    dotted = name.constant
    if not isinstance(dotted, str):
        return UNKNOWN
    for part in dotted.split("."):
        receiver = m.attribute(frame, node, receiver, part)
    return receiver


def default_dict(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``defaultdict(factory, ...)``: a dict that creates missing items."""
    missing = args.get(0, "default_factory")
    rest = replace(args, positional=args.positional[1:], written=False)
    made = builtin_calls.builtin(m, frame, node, "builtins.dict", rest, row)
    if missing is None or missing.is_none:
        return made
    for table in made.of(Table):
        plain = replace(table, ident=0, missing=missing)
        return with_identity(m, node, of(plain))
    return with_identity(m, node, of(Table((), ABSENT, missing=missing)))


def _copied(m: Machine, node: ast.AST, value: Value, made: set[int]) -> Value:
    """A copy of `value`; `made` are the objects copied so far."""

    def change(atom: Atom) -> Atom:
        if isinstance(atom, (Thing, Tensor)):
            ident = m.ident_at(node, "copy")
            _noted(m, atom.ident, ident)
            m.program.copies.setdefault(ident, set()).add(atom.ident)
            return replace(atom, ident=ident, born=m.worker_ident)
        if isinstance(atom, Instance):
            ident = m.ident_at(node, "copy", atom.ident)
            m.program.copies.setdefault(ident, set()).add(atom.ident)
            if ident not in made:
                made.add(ident)
                _noted(m, atom.ident, ident)
                for name, held in list(m.fields(atom.ident)):
                    m.set_field(ident, name, _copied(m, node, held, made))
            return Instance(atom.cls, ident, m.worker_ident)
        return atom

    return Value(tuple(Choice(change(choice.atom), choice.when) for choice in value.choices))


def _noted(m: Machine, old: int, new: int) -> None:
    """Copy the recorded state of the object `old` to its copy."""
    for name in (
        ("<gpu>", frozen.FROZEN, torch_modules.TRAINING, estimators.ON_GPU) if old > 0 else ()
    ):
        note = frozen.state_of(m, old) if name == frozen.FROZEN else m.stored(old, name)
        if note is not None:
            m.store[new, name] = note
    place = m.place_of(old)
    if place is not None:
        m.moved(new, place)
