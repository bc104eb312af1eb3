"""Statements: what they bind, where they branch, and what they leave behind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from functools import partial

from gradguard_lint.domain.conditions import Key
from gradguard_lint.domain.shapes import items, known_items, sequence, without_item
from gradguard_lint.domain.state import State
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Class,
    Const,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Partial,
    ProjectModule,
    Table,
    Unknown,
    Value,
    join,
    of,
)
from gradguard_lint.engine.branches import TURN, definite, enter_branch, fork
from gradguard_lint.engine.calls import rebind
from gradguard_lint.engine.expressions import iterated, operate
from gradguard_lint.engine.machine import (
    HEAP,
    Machine,
)
from gradguard_lint.engine.ports import SETTER, Args
from gradguard_lint.engine.tree import descend
from pytest_gradguard.records import replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any


def do_Expr(m: Machine, frame: Frame, node: ast.Expr) -> None:
    m.eval(frame, node.value)


def do_Assign(m: Machine, frame: Frame, node: ast.Assign) -> None:
    value = m.eval(frame, node.value)
    for target in node.targets:
        assign(m, frame, target, value)


def do_AnnAssign(m: Machine, frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(m, frame, node.target, m.eval(frame, node.value))


def do_AugAssign(m: Machine, frame: Frame, node: ast.AugAssign) -> None:
    old = m.eval(frame, node.target)
    value = m.eval(frame, node.value)
    m.models.in_place(m, frame, node, old)
    only = old.only
    if isinstance(only, Items) and isinstance(node.op, ast.Add):
        added = m.element(value)
        joined = added if only.items == () else join((only.element, added))
        grown = Items(only.kind, None, joined, only.ident)
        if only.ident:
            m.hold(grown)  # a list grows in place, for all its names
        else:
            assign(m, frame, node.target, of(grown))
        return
    assign(m, frame, node.target, operate(m, frame, node, node.op, old, value))


def assign(m: Machine, frame: Frame, target: ast.expr, value: Value) -> None:
    if isinstance(target, (ast.Name, ast.Attribute, ast.Subscript)):
        value = m.adopted(target, value)
    if isinstance(target, ast.Name):
        holder = frame.outer.get(target.id)
        if holder is not None:
            m.models.global_written(m, frame, target, target.id, value, holder)
        m.write(frame, target.id, value)
        m.origins[(holder or frame).ident, target.id] = m.site(frame, target)
    elif isinstance(target, (ast.Tuple, ast.List)):
        _unpack(m, frame, target, value)
    elif isinstance(target, ast.Attribute):
        owner = m.eval(frame, target.value)
        for atom in owner.atoms:
            if isinstance(atom, Instance):
                setter = _setter(m, frame, target, atom)
                if setter is not None:
                    m.call(frame, target, setter, Args([value]))
                    continue
                m.models.set_attribute(m, frame, target, atom, value)
                m.set_field(atom.ident, target.attr, value)
                m.origins[atom.ident, target.attr] = m.site(frame, target)
            elif isinstance(atom, Class):
                m.store[(atom.body.ident, target.attr)] = value
            elif (
                isinstance(atom, Unknown)
                and (shown := m.models.set_attribute(m, frame, target, atom, value)) is not None
            ):
                m.rebind(frame, target.value, shown)
            elif isinstance(atom, Unknown) and atom.key is not None:
                m.store[(0, str(("attr", atom.key, target.attr)))] = value
            elif isinstance(atom, ProjectModule):
                home = m.module_frame(atom.name)
                if home is not None:
                    m.models.global_written(m, frame, target, target.attr, value, home)
                    m.store[(home.ident, target.attr)] = value
            else:
                changed = m.models.set_attribute(m, frame, target, atom, value)
                if changed is not None:
                    m.rebind(frame, target.value, changed)
    elif isinstance(target, ast.Subscript):
        _store_item(m, frame, target, value)


def _setter(m: Machine, frame: Frame, target: ast.Attribute, owner: Instance) -> Value | None:
    """What is called where an attribute of `owner` is set: of a property, or of a descriptor."""
    setter = m.find_in_class(owner.cls, target.attr + SETTER)
    if setter is not None:
        return m.bind(frame, target, setter, owner)
    kind = m.find_in_class(owner.cls, target.attr)
    for instance in kind.of(Instance) if kind is not None else ():
        method = m.find_in_class(instance.cls, "__set__")
        if method is not None:
            bound = m.bind(frame, target, method, instance)
            return bound.map(lambda atom: of(Partial(of(atom), (of(owner),))))
    return None


def _unpack(m: Machine, frame: Frame, target: ast.Tuple | ast.List, value: Value) -> None:
    count = len(target.elts)
    star = next((i for i, it in enumerate(target.elts) if isinstance(it, ast.Starred)), count)
    value = iterated(m, frame, target, value)
    for index, item in enumerate(target.elts):
        part = value.map(partial(_part, m, index, count, star))
        if isinstance(item, ast.Starred):
            assign(m, frame, item.value, m.adopted(item, part))
        else:
            assign(m, frame, item, part)


def _part(m: Machine, index: int, count: int, star: int, atom: Atom) -> Value:
    """What the unpacking of `atom` into `count` names (at `star` what is left) gives one."""
    known = known_items(of(atom))
    if star < count:
        more = len(known) - count if known is not None else -2
        if known is not None and more >= -1:
            if index == star:
                return items("list", known[star : star + more + 1])
            return known[index if index < star else index + more]
        if index == star:
            return sequence(m.element(of(atom)))
        return m.element(of(atom))
    if known is not None and len(known) == count:
        return known[index]
    if isinstance(atom, Unknown) and atom.key is not None:
        return of(Unknown(("item", atom.key, index)))
    return m.element(of(atom))


def _store_item(m: Machine, frame: Frame, target: ast.Subscript, value: Value) -> None:
    holder = m.eval(frame, target.value)
    index = m.eval(frame, target.slice)
    for instance in holder.of(Instance):
        method = m.find_in_class(instance.cls, "__setitem__")
        if method is not None:
            bound = m.bind(frame, target, method, instance)
            m.call(frame, target, bound, Args([index, value]))
    m.models.set_item(m, frame, target, holder, index, value)
    for atom in holder.atoms:
        changed = _with_item(atom, target, index, value)
        if changed is None:
            continue
        if len(holder.choices) > 1:
            changed = join((of(atom), changed))
        if isinstance(atom, (Items, Table)) and atom.ident:
            m.store[atom.ident, HEAP] = changed
        elif isinstance(target.value, (ast.Name, ast.Attribute)):
            rebind(m, frame, target.value, changed)


def _with_item(atom: Atom, target: ast.Subscript, index: Value, value: Value) -> Value | None:
    """The container `atom` after ``atom[index] = value``; None where it is none."""
    if isinstance(atom, Table):
        if isinstance(index.only, Const):
            entries = dict(atom.entries)
            entries[index.constant] = value
            return of(replace(atom, entries=tuple(entries.items())))
        rest = value if atom.rest.is_unknown else join((atom.rest, value))
        keys = index if atom.keys is None else join((atom.keys, index))
        return of(replace(atom, rest=rest, keys=keys))
    if isinstance(atom, Items) and not isinstance(target.slice, ast.Slice):
        place, known = index.constant, atom.items
        if known is not None and isinstance(place, int) and -len(known) <= place < len(known):
            changed = list(known)
            changed[place] = value
            return of(replace(atom, items=tuple(changed), element=join(changed)))
        empty = atom.element.is_unknown
        return of(
            replace(atom, items=None, element=value if empty else join((atom.element, value)))
        )
    return None


def do_Delete(m: Machine, frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            m.store.drop((frame.ident, target.id))
        elif isinstance(target, ast.Attribute):
            only = m.eval(frame, target.value).only
            if isinstance(only, Instance):
                m.store.drop((only.ident, target.attr))
        elif isinstance(target, ast.Subscript):
            only = m.eval(frame, target.value).only
            index = m.eval(frame, target.slice)
            left = without_item(only, index) if isinstance(only, (Items, Table)) else None
            if left is not None and isinstance(only, (Items, Table)):
                if only.ident:
                    m.store[only.ident, HEAP] = of(left)
                else:
                    rebind(m, frame, target.value, of(left))


def do_Global(m: Machine, frame: Frame, node: ast.Global) -> None:
    for name in node.names:
        frame.outer[name] = frame.root


def do_Nonlocal(m: Machine, frame: Frame, node: ast.Nonlocal) -> None:
    for name in node.names:
        scope = frame.parent
        while scope is not None:
            if (scope.ident, name) in m.store and not scope.is_class:
                frame.outer[name] = scope
                break
            scope = scope.parent


def do_Return(m: Machine, frame: Frame, node: ast.Return) -> None:
    value = m.eval(frame, node.value)
    if m.dead:
        return
    m.outcomes(frame).returns.append((value, node, m.leave()))


def do_Raise(m: Machine, frame: Frame, node: ast.Raise) -> None:
    if node.exc is not None:
        m.eval(frame, node.exc)
    if m.dead:
        return
    state = m.leave()
    if m.raised:
        m.raised[-1].append(state)


def do_Break(m: Machine, frame: Frame, node: ast.Break) -> None:
    state = m.leave()
    loops = m.outcomes(frame).loops
    if loops:
        loops[-1].breaks.append(state)


def do_Continue(m: Machine, frame: Frame, node: ast.Continue) -> None:
    state = m.leave()
    loops = m.outcomes(frame).loops
    if loops:
        loops[-1].continues.append(state)


def do_Assert(m: Machine, frame: Frame, node: ast.Assert) -> None:
    test = m.eval(frame, node.test)
    if not enter_branch(m, frame, node.test, test, True):
        m.die()


def do_If(m: Machine, frame: Frame, node: ast.If) -> None:
    test = m.eval(frame, node.test)
    if m.before_main is None and frame.parent is None and _is_main_guard(m, frame, node.test):
        m.before_main = dict(m.state.past)

    turns = _turns_told(m, frame, node.test, test)

    def way(body: list[ast.stmt]) -> Callable[[], None]:
        def go() -> None:
            m.assumed.update(turns)
            m.block(frame, body)

        return go

    told = turns.keys() - m.assumed.keys()
    fork(m, frame, node.test, test, (way(node.body), way(node.orelse)))
    for key in told:
        m.assumed.pop(key, None)


def _turns_told(m: Machine, frame: Frame, node: ast.expr, test: Value) -> dict[Key, Hashable]:
    """The turns of loops over known items that `test` tells from others."""
    if not frame.loop_names or not m.elements or definite(test) is None:
        return {}
    names = frozenset(part.id for part in descend(node) if isinstance(part, ast.Name))
    here = [keys for function, keys in m.elements if function is frame.function]
    return {
        ("value", key): m.turns[-1]
        for bound, keys in zip(reversed(frame.loop_names), reversed(here), strict=False)
        for key in keys
        if isinstance(key, tuple) and key[0] == TURN and bound & names
    }


def _is_main_guard(m: Machine, frame: Frame, test: ast.expr) -> bool:
    return (
        frame.module.name == m.program.entry
        and isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
    )


def do_Try(m: Machine, frame: Frame, node: ast.Try) -> None:
    before = m.state.copy()
    exits = _exits(m, frame)
    guarded = m.guarded_import
    m.guarded_import = guarded or any(_catches_imports(item) for item in node.handlers)
    raised: list[State] = []
    if node.handlers:
        m.raised.append(raised)
    try:
        m.block(frame, node.body)
    finally:
        if node.handlers:
            m.raised.pop()
    after = m.state.copy()
    after.dead = False
    m.block(frame, node.orelse)
    ends = [m.state]
    for handler in node.handlers:
        _catch(m, before, after, raised)
        if handler.type is not None:
            m.eval(frame, handler.type)
        if handler.name:
            m.store[frame.ident, handler.name] = UNKNOWN
        m.block(frame, handler.body)
        ends.append(m.state)
    m.guarded_import = guarded
    left = node.finalbody and _leave(m, exits, lambda: m.block(frame, node.finalbody))
    if any(not state.dead for state in ends):
        m.meet(ends)
        m.state.assumed = {
            key: value for key, value in m.state.assumed.items() if before.assumed.get(key) == value
        }
        m.block(frame, node.finalbody)
        return
    m.state = after
    if not left:
        m.block(frame, node.finalbody)
    m.die()


def _catch(m: Machine, before: State, after: State, raised: list[State]) -> None:
    """Go on where an exception of a body is caught.

    Anything in the body may raise: what is found is that before it, after it, or at a raise; what
    the body did is done for certain only at a raise.
    """
    certain = before.past.keys() | {event for state in raised for event in state.past}
    m.meet([before, after, *raised])
    m.state = m.state.copy()
    for event in m.state.past.keys() - certain:
        del m.state.past[event]
    m.state.assumed = dict(before.assumed)
    m.state.modes = before.modes


Exit = tuple[Value, ast.AST, State] | State


def _exits(m: Machine, frame: Frame) -> list[tuple[list[Any], int]]:
    """The ways out of a block that lead further than its end, and how many were taken so far."""
    left = m.outcomes(frame)
    ways: list[list[Any]] = [left.returns]
    if left.loops:
        ways += (left.loops[-1].breaks, left.loops[-1].continues)
    ways += m.raised[-1:]
    return [(way, len(way)) for way in ways]


def _leave(m: Machine, exits: list[tuple[list[Any], int]], last: Callable[[], None]) -> bool:
    """Do `last` on each way out that was taken since; whether there is one."""
    here = m.state
    taken: list[tuple[list[Any], list[Exit]]] = [(way, way[known:]) for way, known in exits]
    for way, known in exits:
        del way[known:]
    for way, ends in taken:
        for end in ends:
            m.state = end[2] if isinstance(end, tuple) else end
            last()
            if not m.dead:  # else `last` leads elsewhere itself
                way.append((*end[:2], m.state) if isinstance(end, tuple) else m.state)
    m.state = here
    return any(ends for _, ends in taken)


def do_With(m: Machine, frame: Frame, node: ast.With | ast.AsyncWith) -> None:
    modes = m.modes
    exits = _exits(m, frame)
    entered = []
    for item in node.items:
        value = m.eval(frame, item.context_expr)
        bound = m.models.enter_context(m, frame, item.context_expr, value)
        entered.append(value)
        if item.optional_vars is not None:
            assign(m, frame, item.optional_vars, bound)

    def leave() -> None:
        for value in reversed(entered):
            m.models.exit_context(m, frame, node, value)
        m.modes = modes

    if not any(m.models.swallows(m, value) for value in entered):
        m.block(frame, node.body)
        _leave(m, exits, leave)
        leave()
        return
    before = m.state.copy()
    raised: list[State] = []
    m.raised.append(raised)
    try:
        m.block(frame, node.body)
    finally:
        m.raised.pop()
    _leave(m, exits, leave)
    if m.dead:  # what is meant to follow comes after an exception
        after = m.state.copy()
        after.dead = False
        _catch(m, before, after, raised)
    leave()


def do_FunctionDef(m: Machine, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    frame.shared = True
    scope: Frame | None = frame
    while scope is not None:
        scope.shared = True
        scope = scope.parent
    defaults = tuple(m.eval(frame, item) for item in node.args.defaults)
    kw_defaults = tuple(
        m.eval(frame, item) if item is not None else None for item in node.args.kw_defaults
    )
    owner = frame.cls if frame.is_class else None
    function = Function(node, frame.module, frame, owner, defaults, kw_defaults)
    value = of(function)
    for decorator in reversed(node.decorator_list):
        value = m.models.decorate(m, frame, decorator, value, function)
    m.write(frame, node.name, value)


def do_ClassDef(m: Machine, frame: Frame, node: ast.ClassDef) -> None:
    frame.shared = True
    bases: list[Atom] = []
    for base in node.bases:
        value = m.eval(frame, base)
        bases.extend(atom for atom in value.atoms if isinstance(atom, (Class, External)))
    body = Frame(m.new_ident(), frame.module, frame, frame.function, is_class=True, born=frame.born)
    what = m.models.class_of(tuple(bases))
    cls = Class(node, frame.module, frame, tuple(bases), body, what, _above(bases))
    body.cls = cls
    m.block(body, node.body)
    value = of(cls)
    for decorator in reversed(node.decorator_list):
        value = m.models.decorate_class(m, frame, decorator, value)
    m.write(frame, node.name, value)


def _above(bases: list[Atom]) -> tuple[Class, ...]:
    """The classes in which attributes are looked for after a class with `bases`, in order."""
    own = [base for base in bases if isinstance(base, Class)]
    lines = [*([base, *base.above] for base in own), own]
    found: list[Class] = []
    while lines := [line for line in lines if line]:
        first = next(
            (line[0] for line in lines if not any(line[0] in other[1:] for other in lines)),
            lines[0][0],  # Python takes no such class
        )
        found.append(first)
        lines = [[item for item in line if item is not first] for line in lines]
    return tuple(found)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {item.id for item in descend(handler.type) if isinstance(item, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"})


STATEMENTS: dict[type[ast.AST], Callable[[Machine, Frame, Any], None]] = {
    getattr(ast, name[3:]): function
    for name, function in list(globals().items())
    if name.startswith("do_")
}
"""What to do with each kind of statement, found by its name."""
STATEMENTS[ast.AsyncFunctionDef] = do_FunctionDef
STATEMENTS[ast.AsyncWith] = do_With
if hasattr(ast, "TryStar"):
    STATEMENTS[ast.TryStar] = do_Try
