"""Calls of the project's functions and classes, and of library objects."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import assume, lasting_conditions
from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.shapes import ABSENT, fill_absent
from gradguard_lint.domain.state import Mark
from gradguard_lint.domain.values import (
    NOTHING,
    PRIMITIVES,
    STUB,
    UNKNOWN,
    Atom,
    Bound,
    Class,
    Delayed,
    External,
    Frame,
    Function,
    Generator,
    Instance,
    Items,
    Method,
    Partial,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    guarded,
    join,
    of,
    unknown,
)
from gradguard_lint.engine import caching
from gradguard_lint.engine.arguments import accepts, arguments, bind_arguments
from gradguard_lint.engine.branches import run_alternatives
from gradguard_lint.engine.containers import forget_length, item_of_unknown, items_changed
from gradguard_lint.engine.defaults import off_by_default
from gradguard_lint.engine.fields import give_fields
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import identified
from gradguard_lint.engine.stub_calls import Caller
from gradguard_lint.engine.tree import yields
from gradguard_lint.engine.turns import changed_in_place, note_arguments
from gradguard_lint.engine.variables import HEAP
from gradguard_lint.words import words
from pytest_gradguard.records import replace

RESIZING = words(
    "add append appendleft clear discard extend extendleft insert pop popleft put remove update"
)
"""Methods that change the length of a container."""


UNCHANGING = words(
    "casefold count endswith find index isdigit lower partition removeprefix removesuffix replace "
    "rpartition rsplit rstrip split startswith strip upper"
)
"""Methods that are pure, whatever their receiver is."""


def on_Call(m: Machine, frame: Frame, node: ast.Call) -> Value:
    if isinstance(node.func, ast.Name) and node.func.id == "super":
        return _super(m, frame, node)
    if isinstance(node.func, ast.Attribute):
        function = m.called_attribute(frame, node.func)
    else:
        function = m.eval(frame, node.func)
    args = arguments(m, frame, node)
    if frame.module.is_stub:
        result = call_from_stub(m, frame, node, function, args)
    else:
        result = call(m, frame, node, function, args)
        result = identified(m, frame, node, result, call=(function, args))
    _change_receiver(m, frame, node, function, args)
    return result


def _change_receiver(m: Machine, frame: Frame, node: ast.Call, function: Value, args: Args) -> None:
    """Update the receiver of an in-place method."""
    if not isinstance(node.func, ast.Attribute):
        return
    name = node.func.attr
    changed = None
    if function.is_unknown:
        changed = m.models.shown_by_method(m, node, name, args)
    for atom in function.atoms:
        if isinstance(atom, Unknown) and name in RESIZING and isinstance(atom.key, tuple):
            forget_length(m, Unknown(atom.key[1]))
            items_changed(m, atom.key[1])
        if not isinstance(atom, Method):
            continue
        if name in RESIZING:
            forget_length(m, atom.receiver)
        new = m.models.changed_receiver(m, frame, node, atom.receiver, name, args)
        if new is None:
            continue
        if isinstance(atom.receiver, (Items, Table)):
            _keep(m, atom.receiver, new)
        else:
            changed = new if changed is None else join((changed, new))
            changed_in_place(m, frame, node.func.value, function, atom.receiver, new)
    if changed is not None:
        rebind(m, frame, node.func.value, changed)


def _keep(m: Machine, container: Items | Table, now: Value) -> None:
    if container.ident:
        m.store[container.ident, HEAP] = now


def call_back(m: Machine, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
    """Call a callback as a library does; container methods change their receiver."""
    result = call(m, frame, node, function, args)
    for atom in function.atoms:
        if isinstance(atom, Method) and isinstance(atom.receiver, (Items, Table)):
            held = m.filtered(of(atom.receiver)).only
            forget_length(m, atom.receiver)
            if not isinstance(held, (Items, Table)):
                continue
            new = m.models.changed_receiver(m, frame, node, held, atom.name, args)
            if new is not None:
                _keep(m, held, new)
    return result


def rebind(m: Machine, frame: Frame, target: ast.expr, value: Value) -> None:
    """Store `value` at the place that `target` was read from."""
    if isinstance(target, ast.Name):
        found = m.lookup(frame, target.id)
        if found is not None:
            m.store[found[1].ident, target.id] = value
    elif isinstance(target, ast.Attribute):
        for owner in m.eval(frame, target.value).of(Instance):
            if (owner.ident, target.attr) in m.store:
                m.set_field(owner.ident, target.attr, value)
    elif isinstance(target, ast.Subscript):
        m.assign(frame, target, value)


def _super(m: Machine, frame: Frame, node: ast.Call) -> Value:
    scope: Frame | None = frame
    while scope is not None and scope.function is None:
        scope = scope.parent
    function = scope.function if scope is not None else None
    while function is not None and function.owner is None and scope is not None:
        scope = scope.parent
        function = scope.function if scope is not None else None
    if function is None or function.owner is None or scope is None:
        return UNKNOWN
    arguments = getattr(function.node.args, "args", [])
    receiver = m.read(scope.ident, arguments[0].arg) if arguments else None
    atom = receiver.only if receiver is not None else None
    named = m.eval(frame, node.args[0]).only if node.args else None
    after = named if isinstance(named, Class) else function.owner
    return of(
        Thing(
            "super",
            after.name,
            parts=(
                ("class", of(after)),
                ("self", of(atom) if atom is not None else UNKNOWN),
            ),
        )
    )


def call(m: Machine, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
    """The result of calling `function`; its effects are recorded."""
    choices = function.choices
    if len(choices) > 1:
        choices = m.filtered(function).choices
    if len(choices) == 1 and not choices[0].when:
        return call_atom(m, frame, node, choices[0].atom, args)
    found = run_alternatives(m, choices, lambda atom: call_atom(m, frame, node, atom, args))
    return _one_switch(m, node, found)


def _one_switch(m: Machine, node: ast.AST, found: Value) -> Value:
    """One flag for ``.get("x", False)`` of several objects, unless all results are known."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "get":
        return found
    off = [it.value for it in node.args[1:] if isinstance(it, ast.Constant)] == [False]
    name = node.args[0].value if off and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(name, str) or not any(found.of(Unknown)):
        return found
    return off_by_default(m, item_of_unknown(m, Unknown(("node", id(node))), name))


def call_atom(m: Machine, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Value:
    if isinstance(atom, Function):
        return apply(m, frame, node, atom, args)
    if isinstance(atom, Method) and isinstance(atom.receiver, Generator):
        return m.parts.generator_method(m, frame, node, atom.receiver, atom.name)
    if _not_seen(atom):
        args = m.parts.exhaust_args(m, frame, node, atom, args)
    if isinstance(atom, Bound):
        if isinstance(atom.receiver, Instance):
            m.facts.executed_methods.add((id(atom.function.node), id(atom.receiver.cls.node)))
        positional = [of(atom.receiver), *args.positional]
        bound = replace(args, positional=positional)
        result = apply(m, frame, node, atom.function, bound, receivers=1)
        if isinstance(atom.receiver, Instance) and atom.receiver.cls.what:
            m.models.ran(m, frame, node, atom.receiver, atom.function.name, args)
        return result
    if isinstance(atom, Class):
        return instantiate(m, frame, node, atom, args)
    if isinstance(atom, Instance):
        method = m.find_in_class(atom.cls, "__call__")
        if method is not None and _stands_in(m, method):
            return UNKNOWN
        if method is not None:
            return call(m, frame, node, m.bind(frame, node, method, atom), args)
        args = m.parts.exhaust_args(m, frame, node, atom, args)
        return m.models.call_instance(m, frame, node, atom, replace(args, written=False))
    if isinstance(atom, Partial):
        keywords = dict(atom.keywords)
        for name, value in args.pairs():
            keywords[name] = fill_absent(value, keywords.get(name, ABSENT))
        exact = atom.exact and args.written
        merged = Args.given([*atom.args, *args.positional], keywords.items(), exact=exact)
        merged.rest, merged.open = args.rest, args.open
        return call(m, frame, node, atom.function, merged)
    if isinstance(atom, Delayed):
        return m.models.make_task(m, frame, node, atom, args)
    if isinstance(atom, External):
        return m.models.call(m, frame, node, atom.name, args)
    if isinstance(atom, Method):
        return m.models.call_method(m, frame, node, atom, args)
    if isinstance(atom, (Thing, Tensor)):
        return m.models.call_thing(m, frame, node, atom, args)
    if isinstance(atom, Unknown):
        known = m.models.call_unknown(m, frame, node, atom, args)
        if known is not None:
            return known
        if atom.key is not None and not args.positional and not args.keywords:
            return unknown(("call", atom.key))
        if isinstance(atom.key, tuple) and atom.key[0] == "attr" and not args.keywords:
            given = tuple(value.constant for value in args.positional)
            if atom.key[2] == "get" and len(given) in (1, 2) and isinstance(given[0], str):
                item = item_of_unknown(m, Unknown(atom.key[1]), given[0])
                if len(given) == 1:
                    return item
                if given[1] is False:
                    return off_by_default(m, item)
            if atom.key[2] in UNCHANGING and None not in given and args.rest is None:
                return unknown(("call", atom.key, given))
    return UNKNOWN


def _not_seen(atom: Atom) -> bool:
    """Whether calling `atom` runs code outside the project."""
    if isinstance(atom, External):
        return not atom.name.startswith(("builtins.", PRIMITIVES))
    return isinstance(atom, (Method, Thing, Tensor, Unknown))


def apply(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    function: Function,
    args: Args,
    receivers: int = 0,
) -> Value:
    """Run the body of `function` with `args`, the first `receivers` of which are bound."""
    if caching.CACHED in function.marks:
        plain = replace(function, marks=function.marks - {caching.CACHED})
        return caching.cached_call(m, function, args, lambda: apply(m, frame, node, plain, args))
    code = function.node
    frame, node = m.in_program(frame, node)
    is_stub = function.module.is_stub
    if is_stub and m.place.stub_caller is None:
        args = args.distinct()
    if m.exceeds_budget_in(frame, function):
        end = code.end_lineno or code.lineno
        m.budget.cut[id(code)] = (function.module.path, code.lineno, end)
        return UNKNOWN
    m.facts.executed.add(id(code))
    if args.written and not is_stub and not accepts(function, args):
        m.leave_by(TypeError)
        return UNKNOWN
    place = (function.module.path, code.lineno)
    if m.place.worker is None and not is_stub and place not in m.facts.executed_lines:
        m.facts.executed_lines[place] = (id(code), m.place.root_line)
    if m.exceeds_depth_in(frame, function):
        return UNKNOWN
    is_lambda = isinstance(code, ast.Lambda)
    message = "calls a lambda" if is_lambda else f"calls `{function.name}`"
    if node is code:
        message = f"`{function.name}` is called"  # called by unknown code
    elif isinstance(node, ast.ClassDef):
        message = f"an object of `{node.name}` is made"
    if is_stub:
        message = ""
    inner = Frame(m.new_ident(), function.module, function.frame, function, born=m.worker_ident)
    if _makes_generator(m, function):
        bind_arguments(m, inner, node, function, args)
        return of(Generator(function, inner))
    entry = m.state
    mark = entry.store.mark()
    assumed, modes = entry.assumed.copy(), entry.modes
    bind_arguments(m, inner, node, function, args)
    m.modes = begun = marked_modes(m, frame, node, function, modes)
    stack = m.place.stack
    if not is_stub:
        m.place.stack = [*stack, code]
    around = m.place.decorating_contexts.get(code)
    caller = enter_code(m, frame, node, function, args.after(receivers) if is_stub else args)
    try:
        with m.called_from(frame, node, message):
            if around is not None:
                m.models.enter_context(m, inner, *around)
            if isinstance(code, ast.Lambda):
                value = m.eval(inner, code.body)
                m.outcomes(inner).returns.append((value, code.body, m.state))
            else:
                m.block(inner, code.body)
                if not m.dead:
                    m.outcomes(inner).returns.append((NOTHING, code, m.state))
    finally:
        m.place.stack = stack
        m.place.stub_caller = caller
    result = _returned(m, inner)
    if around is not None:
        m.models.exit_context(m, inner, *around, None)
    if not inner.shared and not inner.lent:
        m.facts.ended_frames.add(inner.ident)
        _forget(m, inner, mark)
    m.place.ended.modes = m.modes
    if begun is modes and around is None:
        modes = modes.after(m.modes)
    inside, m.state.assumed, m.state.modes = m.assumed, assumed, modes
    assume(m.assumed, lasting_conditions(inside, assumed))
    returns = [(value, place) for value, place, _ in m.outcomes(inner).returns if place is not code]
    m.place.ended.returns = None if is_stub else (function.module, function.name, returns)
    if code in m.place.ended.decorated_returns:
        m.place.ended.decorated_returns[code] += returns
    del m.place.exits[inner.ident]
    return result


def enter_code(
    m: Machine, frame: Frame, node: ast.AST, function: Function, args: Args
) -> Caller | None:
    """Record the entry into a stub's or the program's function; returns the state to restore."""
    caller = m.place.stub_caller
    if not function.module.is_stub:
        m.place.stub_caller = None
    elif caller is None:
        m.place.stub_caller = Caller(frame, node, args)
    return caller


def call_from_stub(m: Machine, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
    """A call in a stub; it counts as made where the program calls the library."""
    saved = m.place.stub_calls
    m.place.stub_calls = (*saved, id(node))
    try:
        return call(m, *m.in_program(frame, node), function, args)
    finally:
        m.place.stub_calls = saved


def _makes_generator(m: Machine, function: Function) -> bool:
    code = function.node
    known = m.caches.makes_generator.get(code)
    if known is None:
        lines = function.module.byte_lines[code.lineno - 1 : code.end_lineno]
        known = m.caches.makes_generator[code] = any(b"yield" in line for line in lines) and yields(
            code
        )
    return known


def marked_modes(
    m: Machine, frame: Frame, node: ast.AST, function: Function, modes: Modes
) -> Modes:
    """The modes that decorators of `function` set."""
    if "no_grad" in function.marks:
        modes = replace(modes, grad=False, grad_site=m.site(frame, node))
    elif "enable_grad" in function.marks:
        modes = replace(modes, grad=True, grad_site=None)
    if "autocast" in function.marks:
        modes = replace(modes, autocast=m.site(frame, node))
    if "compiled" in function.marks:
        modes = replace(modes, compiled=True)
    return modes


def _returned(m: Machine, inner: Frame) -> Value:
    """Continue after a call with the join of its ends; the value returned."""
    left = m.outcomes(inner)
    ends = [state for _, _, state in left.returns]
    if not ends:
        m.die()  # every path raises or exits
        return UNKNOWN
    common = frozenset.intersection(*(state.assumed.facts for state in ends))
    m.meet(ends)
    if len(ends) == 1:
        return left.returns[0][0]
    return join(guarded(value, state.assumed.facts - common) for value, _, state in left.returns)


def _forget(m: Machine, inner: Frame, mark: Mark | None) -> None:
    """Drop the unreferenced variables of a call, which began at `mark`."""
    store = m.state.store
    for place in [place for place in store.since(mark) if place[0] == inner.ident]:
        store.forget(place)


def _stands_in(m: Machine, method: Value) -> bool:
    """Whether `method` is a callable object whose own ``__call__`` is an object."""
    called = (m.find_in_class(it.cls, "__call__") for it in method.of(Instance))
    return any(any(it.of(Instance)) for it in called if it is not None)


def instantiate(m: Machine, frame: Frame, node: ast.AST, cls: Class, args: Args) -> Value:
    """Create an object of a project class."""
    # Library objects created in different iterations are distinct, as what they do may differ.
    turns = m.place.turns.items if cls.what == STUB else ()
    if (
        cls.what == STUB and m.place.stub_caller is not None
    ):  # so are those with different arguments
        turns += tuple(it.ident for value in args.positional for it in value.of(Instance))
    instance = Instance(cls, m.ident_at(node, id(cls.node), turns), m.worker_ident)
    caching.reset_cached_properties(m, instance)
    init = m.find_in_class(cls, "__init__")
    if m.find_in_class(cls, "__new__") is not None or any(
        part.node.keywords or part.node.decorator_list for part in (cls, *cls.above)
    ):
        args = replace(args, written=False)  # they may take other arguments
    if isinstance(node, ast.Call):
        # Which items of a container a constructor uses is unknown here.
        note_arguments(m, frame, node, args, instance, depth=0 if init is not None else 4)
    making, m.place.making = m.place.making, (*m.place.making, (instance, node))
    try:
        if init is not None:
            call(m, frame, node, m.bind(frame, node, init, instance), args)
        else:
            give_fields(m, frame, node, cls, instance, args)
    finally:
        m.place.making = making
    m.models.instantiated(m, frame, node, instance, args)
    return of(instance)
