"""torch: which parameters of a module are frozen by ``requires_grad``.

The state of a module applies to its parts. A module whose parts are all known has only their state:
each part may be frozen or unfrozen separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gradguard_lint.domain.conditions import NEVER, NONE, Conditions, any_of, plain
from gradguard_lint.domain.evidence import CLASS
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Choice,
    Const,
    Instance,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
)
from gradguard_lint.engine.branches import condition
from gradguard_lint.engine.containers import whole
from gradguard_lint.engine.machine import Machine
from gradguard_lint.models.torch_words import WEIGHTLESS
from pytest_gradguard.records import replace

PARTS = "parts"
"""First element of keys that stand for each submodule of a module, which follows."""

_DEPTH = 4
"""The depth to which submodules are frozen with their module."""

FROZEN = "<frozen>"
ALL_PARTS = "<parts>"
"""Store key: the names of a module's parts, if these are all."""

_FREE = Const(False, "bool")
_WITH_THE_WHOLE = Const("with the whole", "str")
"""The state of a module frozen as a part of another."""
_AS_MADE, _ALL = constant(False), constant(True)
_SETTLED = (_ALL, of(_WITH_THE_WHOLE))


def freeze(m: Machine, ident: int, frozen: Value, depth: int = _DEPTH) -> None:
    """Record whether the parameters of a module are `frozen` from here on."""
    if ident <= 0:
        return
    m.store[(ident, FROZEN)] = frozen
    some = any(atom != _FREE for atom in frozen.atoms)
    for name, value in list(m.fields(ident)):
        for part in modules_in(m, value) if depth else ():
            beyond = whole_of(part)
            if isinstance(part, (Instance, Thing)):
                freeze(m, part.ident, frozen.map(_as_a_part), depth - 1)
            elif beyond is not None and some:  # perhaps not all of its modules
                freeze(m, beyond.ident, UNKNOWN, depth - 1)
        if some and any(tensor.grad == "parameter" for tensor in value.tensors()):
            grad = "none" if frozen == _ALL or frozen.only == _WITH_THE_WHOLE else "unknown"
            m.set_field(ident, name, value.map(partial(_with, grad)))


def frozen_by(m: Machine, flag: Value) -> Value:
    """The state of a module with ``requires_grad`` set to `flag`."""

    def ask(atom: Atom) -> Value:
        if isinstance(atom, Const):
            return constant(not atom.value)
        on = condition(m, of(atom), True)
        if not on:
            return UNKNOWN
        return join((guarded(_AS_MADE, on), guarded(_ALL, condition(m, of(atom), False))))

    return flag.map(ask)


def _as_a_part(atom: Atom) -> Value:
    return of(_WITH_THE_WHOLE if isinstance(atom, Const) and atom.value is True else atom)


def _with(grad: str, atom: Atom) -> Value:
    parameter = isinstance(atom, Tensor) and atom.grad == "parameter"
    return of(replace(atom, grad=grad) if parameter else atom)


def as_made(m: Machine, ident: int, depth: int = _DEPTH) -> None:
    """Record that a module's parameters require grad, unless their state is known, so that a later
    branch that freezes them is joined with it."""
    if ident <= 0 or m.stored(ident, FROZEN) is not None:
        return
    m.store[(ident, FROZEN)] = state_of(m, ident) or _AS_MADE
    for _, value in list(m.fields(ident)) if depth else ():
        for part in modules_in(m, value):
            if isinstance(part, (Instance, Thing)):
                as_made(m, part.ident, depth - 1)


def modules_in(m: Machine, value: Value) -> Iterator[Atom]:
    """The modules in `value`, a part of a module; an unknown one stands for all in another."""
    for part in value.atoms:
        if isinstance(part, Instance) or module_itself(part) or whole_of(part) is not None:
            yield part
        elif isinstance(part, (Items, Table)):
            for atom in inner(whole(m, of(part))):
                if module_itself(atom) or whole_of(atom) is not None:
                    yield atom


def module_by_use(m: Machine, instance: Instance) -> bool:
    """Whether `instance` is a module, as shown by its use if its base is unknown."""
    cls = instance.cls
    if not cls.what and not cls.plain:
        m.facts.evidence.prove((CLASS, id(cls.node)), "module", m.assumed.facts)
        cls.what = "torch"
    return cls.what == "torch"


def module_itself(atom: Atom) -> bool:
    if isinstance(atom, Thing):
        return atom.kind == "model"
    return isinstance(atom, Instance) and atom.cls.what == "torch"


def whole_of(atom: Atom) -> Instance | Thing | None:
    """The module whose submodules `atom` represents."""
    key = atom.key if isinstance(atom, Unknown) else None
    if not isinstance(key, tuple) or len(key) != 2 or key[0] != PARTS:
        return None
    return key[1] if isinstance(key[1], (Instance, Thing)) else None


def keep_parts(m: Machine, ident: int, parts: dict[str, Value]) -> None:
    """Record that a module consists of exactly these `parts`."""
    for name, value in parts.items():
        m.set_field(ident, name, value)
    m.store[(ident, ALL_PARTS)] = constant(tuple(parts))


def parts_changed(m: Machine, ident: int) -> None:
    """Record that a module may have other parts, or run other code, from here on."""
    m.store[(ident, ALL_PARTS)] = UNKNOWN


def all_parts(m: Machine, ident: int) -> list[Value] | None:
    """The parts of a module, in order; None if they are unknown."""
    names = m.read(ident, ALL_PARTS)
    listed = names.constant if names is not None else None
    if not isinstance(listed, tuple):
        return None
    return [m.read(ident, name) or UNKNOWN for name in listed]


def state_of(m: Machine, ident: int, depth: int = _DEPTH) -> Value | None:
    """Whether the parameters of a module are frozen; None if nothing was recorded."""
    own = m.read(ident, FROZEN)
    states: list[Value | None] = []
    only = all_parts(m, ident) if depth else None
    for value in only or ():
        if any(weighted(atom) for atom in value.atoms):
            found = [_state_of_part(m, atom, depth - 1) for atom in value.atoms]
            states += found
    if only is None or not states:
        return own if only is None else _ALL
    states = [own if it is not None and _WITH_THE_WHOLE in it.atoms else it for it in states]
    if any(it is None or it.only == _FREE for it in states):
        return None if all(it is None for it in states) else _AS_MADE
    left = {it for it in states if it is not None and it not in _SETTLED}
    return _met(left) if left else _ALL


def _met(states: set[Value]) -> Value:
    """The state of a module with parts in these states: unfrozen where any part is."""
    if len(states) == 1:
        return states.pop()
    if any(isinstance(atom, Unknown) for state in states for atom in state.atoms):
        return UNKNOWN
    when = any_of(way for state in states for way in _free_when(state))
    return Value((Choice(_ALL.choices[0].atom), Choice(_FREE, when)))


def _free_when(state: Value) -> list[Conditions]:
    """The conditions under which parameters in that state require grad."""
    free = [choice.when for choice in state.choices if choice.atom == _FREE]
    if free or len(state.choices) > 1:
        return free
    # On other paths, nothing was done to them.
    return [frozenset({(key, not truth)}) for key, truth in plain(state.choices[0].when)]


def _state_of_part(m: Machine, atom: Atom, depth: int) -> Value | None:
    if isinstance(atom, Instance):
        return _state_of_object(m, atom, depth)
    if isinstance(atom, Thing):
        return state_of(m, atom.ident, depth)
    beyond = whole_of(atom)
    state = state_of(m, beyond.ident, depth) if beyond is not None else UNKNOWN
    return state if state is None or state == _ALL or state.only == _FREE else UNKNOWN


def _state_of_object(m: Machine, instance: Instance, depth: int) -> Value | None:
    """The state of an object, whose attributes may be frozen separately."""
    own = state_of(m, instance.ident, depth)
    if depth <= 0 or (own is not None and own.only != _FREE):
        return own
    values = [value for _, value in m.fields(instance.ident)]
    free = any(tensor.grad == "parameter" for value in values for tensor in value.tensors())
    parts = [part for value in values for part in modules_in(m, value) if weighted(part)]
    states = [_state_of_part(m, part, depth - 1) for part in parts]
    if free or any(it is None or it.only == _FREE for it in states):
        return own
    return _ALL if states and all(it in _SETTLED for it in states) else UNKNOWN


def weighted(atom: Atom) -> bool:
    """Whether this part of a module may have parameters."""
    if isinstance(atom, Thing):
        return atom.name.rpartition(".")[2] not in WEIGHTLESS
    return True


def parameters_of(m: Machine, ident: int, parameter: Tensor) -> list[tuple[Tensor, Conditions]]:
    """`parameter`, representing those of the module, split into frozen and unfrozen with
    conditions."""
    value = state_of(m, ident) if ident else None
    if value is None:
        return [(parameter, NONE)]
    if any(isinstance(atom, Unknown) for atom in value.atoms):
        return [(replace(parameter, grad="unknown"), NONE)]
    frozen, free = replace(parameter, grad="none"), _free_when(value)
    when = (any_of(free) if free else NEVER) - m.assumed.facts
    if m.conflicts(when):
        return [(frozen, NONE)]
    if not when and len(value.choices) > 1 and _WITH_THE_WHOLE in value.atoms:
        # Some parameters of the whole are frozen: possibly all of these, or none.
        return [(replace(parameter, grad="unknown"), NONE)]
    return [(frozen, NONE), (parameter, when)] if when else [(parameter, NONE)]


def partly_frozen(m: Machine, ident: int) -> bool:
    """Whether some parameters of that module are frozen, and others aren't."""
    value = state_of(m, ident)
    return value is not None and {True, False} <= set(value.constants())


def stands_for_all(tensor: Tensor) -> bool:
    """Whether `tensor` represents all parameters of a module."""
    sources = tensor.sources
    return tensor.ident in sources and (len(sources) == 1 or tensor.grad == "parameter")
