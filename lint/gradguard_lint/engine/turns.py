"""Aliasing between loop iterations: whether two iterations use the same object.

A value is *loop-invariant* if all iterations have the same one, and *per turn* if each has its own:
created in the iteration, or consumed as the loop's item.
"""

from __future__ import annotations

import ast
from collections.abc import Set

from gradguard_lint.domain.effects import Step
from gradguard_lint.domain.shapes import ABSENT, inner, map_contents
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.domain.values import (
    Atom,
    Bound,
    Const,
    Frame,
    Function,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    of,
)
from gradguard_lint.engine.arguments import SOME
from gradguard_lint.engine.displays import Display, display_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tree import descend, is_fixed, last_name
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    Known = dict[tuple[int, str], bool | None]
    """Whether names are loop-invariant, by frame; None also during the check."""


def in_loop(m: Machine, frame: Frame) -> bool:
    """Whether code in `frame` runs repeatedly."""
    scope: Frame | None = frame
    around = 0
    while scope is not None and scope.function is frame.function:
        around += len(scope.loop_names)
        scope = scope.parent
    loops = m.place.turns.loops
    if not around and m.place.turns.depth <= 0:
        return False
    if around > sum(loop.function is frame.function for loop in loops):
        return True  # in a comprehension
    return not loops or not all(
        any(("value", key) in m.assumed for key in loop.keys) for loop in loops
    )


# -- objects ------------------------------------------------------------------------------------


def from_before(m: Machine, value: Value, depth: int = 4) -> frozenset[int]:
    """The identities in `value` that existed before this iteration."""
    return frozenset(
        atom.ident
        for atom in inner(value, depth)
        if isinstance(atom, (Instance, Tensor, Thing))
        and atom.ident > 0
        and m.place.turns.is_older(atom.ident)
    )


def consume(m: Machine, item: Value) -> None:
    """Record that the current iteration consumes `item`, as no other does."""
    for atom in inner(item):
        if isinstance(atom, (Instance, Tensor, Thing)):
            m.place.turns.consumed[atom.ident] = m.place.turns.began


def made_in_turn(m: Machine, value: Value) -> bool:
    """Whether `value` contains objects, all of them per turn; one without an identity may be
    shared."""
    if not m.place.turns.began:
        return False
    receivers = [of(atom.receiver) for atom in value.of(Bound)]
    value = join([value, *receivers]) if receivers else value
    things = [atom for atom in inner(value) if isinstance(atom, (Instance, Tensor, Thing))]
    if not things or not all(atom.ident > 0 for atom in things):
        return False
    return not from_before(m, value)


# -- arguments, as they are written -------------------------------------------------------------


def bound_per_turn(frame: Frame) -> frozenset[str]:
    """The names bound by each iteration of the enclosing loops."""
    names: frozenset[str] = frozenset()
    scope: Frame | None = frame
    while scope is not None and scope.function is frame.function:
        names = names.union(*scope.loop_names)
        scope = scope.parent
    return names


def private_parts(
    frame: Frame, node: ast.Call, args: Args
) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and keywords of the arguments of `node` that are per turn; -1: the function, as in
    ``delayed(f)``."""
    names = bound_per_turn(frame)
    if not names:
        return frozenset(), frozenset()
    given = [it for item in node.args for it in _unpacked(frame, item)]
    positions = {index for index, (item, more) in enumerate(given) if varies(item, names | more)}
    if positions and any(isinstance(item, ast.Starred) for item, _ in given):
        positions = _placed(positions, [item for item, _ in given], args)
    function = node.func
    if isinstance(function, ast.Call) and any(varies(item, names) for item in function.args):
        called = function.args[0] if function.args else function
        if any(isinstance(part, ast.Name) and part.id in names for part in descend(called)):
            positions.add(-1)
    keywords = {
        item.arg for item in node.keywords if item.arg is not None and varies(item.value, names)
    }
    return frozenset(positions), frozenset(keywords)


def _unpacked(frame: Frame, item: ast.expr) -> list[Display]:
    """The arguments for `item`: the parts of a starred tuple, if the source shows them."""
    if isinstance(item, ast.Starred):
        display, names = display_of(frame, item.value)
        parts = display.elts if isinstance(display, (ast.Tuple, ast.List)) else [item]
        if not any(isinstance(part, ast.Starred) for part in parts):
            return [(part, names) for part in parts]
    return [(item, frozenset())]


def varies(item: ast.AST, names: frozenset[str]) -> bool:
    """Whether `item` differs between iterations: it contains a call or one of `names`."""
    return any(
        isinstance(part, ast.Call) or (isinstance(part, ast.Name) and part.id in names)
        for part in descend(item)
    )


def _placed(written: set[int], nodes: list[ast.expr], args: Args) -> set[int]:
    """Positions in `args` of the nodes `written`; with starred arguments, all positions between the
    first and last of these."""
    stars = [index for index, item in enumerate(nodes) if isinstance(item, ast.Starred)]
    more = len(args.positional) - len(nodes)
    first, last = stars[0], stars[-1]
    if args.rest is not None:
        more, last = more + SOME, len(nodes) - 1
    places = {index if index < first else index + more for index in written}
    if any(first <= index <= last for index in written):
        places.update(range(first, last + more + 1))
    return places


def note_arguments(
    m: Machine, frame: Frame, node: ast.Call, args: Args, made: Instance, depth: int
) -> None:
    """Record which `args` of the constructor of `made` are loop-invariant, and which are per turn.

    `depth`: the nesting in containers down to which objects count as passed.
    """
    if not bound_per_turn(frame):
        return
    positions, names = private_parts(frame, node, args)
    unpacks = any(item.arg is None for item in node.keywords)
    invariant, per_turn = list[Value](), list[Value]()
    for index, value in enumerate(args.positional):
        (per_turn if index in positions else invariant).append(value)
    for name, value in args.keywords.items():
        if name in names:
            per_turn.append(value)
        elif not unpacks:
            invariant.append(value)
    m.place.turns.loop_invariant_args[made.ident] = frozenset[int]().union(
        *(from_before(m, value, depth) for value in invariant)
    )
    m.place.turns.per_turn_args[made.ident] = {
        atom for value in per_turn for atom in value.atoms if isinstance(atom, (Const, Unknown))
    }


# -- attributes of objects that turns make ------------------------------------------------------

_PLAIN = (ast.Constant, ast.Dict, ast.List, ast.Tuple)
"""Expressions that are loop-invariant if their parts are."""


def note_field(
    m: Machine, frame: Frame, node: ast.stmt, target: ast.expr, written: ast.expr, value: Value
) -> None:
    """Record the loop-invariant objects in `value`, which `node` sets as an attribute of an object
    under construction; `written` is their expression."""
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return
    owner = m.read(frame.ident, target.value.id)
    made = owner.only if owner is not None else None
    if not isinstance(made, Instance) or all(made != it for it, _ in m.place.making):
        return
    given = from_before(m, value)
    if given and _always_runs(frame, node):
        is_invariant = _is_invariant(m, frame, written, m.place.chain, {})
        if is_invariant is not None:
            _share(m, made, target.attr, given if is_invariant else frozenset(), frozenset())


def note_shared_field(m: Machine, owner: Instance, name: str, value: Value) -> None:
    """Record objects of other tasks in `value`, which a task sets as an attribute of its own
    object: they stay shared when it is read again."""
    if (
        m.place.worker is None
        or m.place.worker.call.kind != THREAD
        or owner.born != m.place.worker.ident
    ):
        return
    others = frozenset(
        atom.ident
        for atom in inner(value)
        if isinstance(atom, (Instance, Tensor, Thing))
        and atom.ident > 0
        and atom.born != owner.born
    )
    if others:
        _share(m, owner, name, others, m.place.turns.shared_by(owner.ident, name))


def _share(m: Machine, owner: Instance, name: str, given: frozenset[int], known: Set[int]) -> None:
    fields = m.place.turns.loop_invariant_fields
    fields[owner.ident, name] = fields.get((owner.ident, name), known) | given


def _always_runs(frame: Frame, statement: ast.stmt) -> bool:
    """Whether `statement` is at the top level of the function."""
    return frame.function is not None and statement in getattr(frame.function.node, "body", ())


def _is_invariant(
    m: Machine, frame: Frame, node: ast.expr, chain: tuple[Step, ...], names: Known
) -> bool | None:
    """Whether `node` is the same in each iteration; None if that is unknown.

    `chain` are the calls that lead to `frame`, `names` the answers so far.
    """
    known: bool | None = True
    for part in descend(node):
        same: bool | None = isinstance(part, _PLAIN) or None
        if isinstance(part, ast.Name):
            key = frame.ident, part.id
            if key not in names:
                names[key] = None  # a name may be bound from itself
                names[key] = _is_invariant_name(m, frame, part.id, chain, names)
            same = names[key]
        elif isinstance(part, ast.Attribute):
            same = not any(_sets(it.site.node, part.attr) for it in m.place.turns.loops) or None
        elif isinstance(part, ast.Subscript):
            same = is_fixed(part.slice) or isinstance(part.slice, ast.Name) or None
        if same is False:
            return False
        known = known and same
    return known


def _sets(loop: ast.AST, name: str) -> bool:
    """Whether `loop` itself sets an attribute of that name."""
    parts = (part for part in descend(loop) if isinstance(part, ast.Attribute))
    return any(part.attr == name and isinstance(part.ctx, ast.Store) for part in parts)


def _is_invariant_name(
    m: Machine, frame: Frame, name: str, chain: tuple[Step, ...], names: Known
) -> bool | None:
    found = m.lookup(frame, name)
    if found is None:
        return None
    home = found[1]
    if name in bound_per_turn(home):
        return False
    if home.parent is None or home.loop_names:
        return True  # it existed before the loop
    if home is not frame or home.function is None:
        return None
    bound = m.facts.origins.get((home.ident, name))
    if bound is not None:
        statement = bound.statement
        if not isinstance(statement, ast.Assign) or not _always_runs(frame, statement):
            return None
        return _is_invariant(m, frame, statement.value, chain, names)
    if not chain:
        return True
    call, caller = chain[-1].site.node, chain[-1].frame
    if not isinstance(call, ast.Call) or caller is None:
        return None
    given = _written_arguments(m, home.function, call)
    if given is None or name not in given:
        return None
    written = given[name]
    return written is None or _is_invariant(m, caller, written, chain[:-1], names)


def _written_arguments(
    m: Machine, function: Function, call: ast.Call
) -> dict[str, ast.expr | None] | None:
    """The expression passed for each parameter of `function` (None: its default), if `call`
    certainly calls it; without the receiver that a constructor creates."""
    called = call.func
    made = [it.cls.name for it, node in m.place.making if node is call]
    said = last_name(called)
    if said not in (function.name, *made) or any(isinstance(it, ast.Starred) for it in call.args):
        return None
    spec = function.node.args
    names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
    given: dict[str, ast.expr | None] = dict.fromkeys((*names, *(it.arg for it in spec.kwonlyargs)))
    if function.owner is not None and "static" not in function.marks and names:
        own = names.pop(0)
        del given[own]
        if isinstance(called, ast.Attribute) and function.name != "__init__":
            given[own] = called.value
        elif isinstance(called, ast.Attribute) and not isinstance(called.value, ast.Call):
            return None  # ``Base.__init__(self, ...)``
    if any(item.arg is None for item in call.keywords):
        return None
    given.update(zip(names, call.args, strict=False))
    given.update((item.arg or "", item.value) for item in call.keywords)
    return given


# -- objects under several names ----------------------------------------------------------------

DEEP = 2
"""The nesting in containers down to which changed objects are replaced."""


def changed_in_place(
    m: Machine, frame: Frame, target: ast.expr, held: Value, atom: Atom, new: Value
) -> None:
    """Replace `atom`, the value of `target`, by `new` wherever it is stored.

    A loop variable stands for each item in turn. Anything else is one object: if it has
    alternatives, or stands for several objects, it is unknown which one changes.
    """
    if not isinstance(atom, Tensor) or atom.ident <= 0 or new == of(atom):
        return
    in_turn = isinstance(target, ast.Name) and any(target.id in it for it in frame.loop_names)
    if not in_turn and len(held.choices) > 1:
        return
    several = m.place.turns.is_several(atom.ident)
    if several and not in_turn:
        return
    for place, value in m.store.held().items():
        if several and not _holds_items(value):
            continue
        changed = _with(value, atom, new, DEEP, several=several)
        if changed is not value:
            m.store[place] = changed


def _holds_items(value: Value) -> bool:
    return any(type(choice.atom) in (Items, Table) for choice in value.choices)


def _with(value: Value, old: Atom, new: Value, depth: int, *, several: bool) -> Value:
    """`value` with `old` replaced by `new`; if it stands for `several` objects, only among items at
    unknown positions."""

    def part(held: Value) -> Value:
        return _with(held, old, new, depth - 1, several=several)

    def change(atom: Atom) -> Value:
        if atom == old:
            return new
        if not depth or not isinstance(atom, (Items, Table)):
            return of(atom)
        if several and isinstance(atom, Table):
            return of(atom if atom.rest == ABSENT else replace(atom, rest=part(atom.rest)))
        known = isinstance(atom, Items) and atom.items is not None
        return of(atom if several and known else map_contents(atom, part))

    changed = value.map(change)
    return value if changed == value else changed
