"""What the objects that turns of a loop make have in common: what each of them is given alike."""

from __future__ import annotations

import ast

from gradguard_lint.domain.effects import Step
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.domain.values import Frame, Function, Instance, Tensor, Thing, Value
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.tree import descend, is_fixed, last_name
from gradguard_lint.engine.turns import from_before, turning

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    Told = dict[tuple[int, str], bool | None]
    """What is told of names, by their frames: None, too, of one that is being asked."""

_PLAIN = (ast.Constant, ast.Dict, ast.List, ast.Tuple)
"""What is the same where its parts are."""


def keep_given(
    m: Machine, frame: Frame, node: ast.stmt, target: ast.expr, written: ast.expr, value: Value
) -> None:
    """Note what each turn of a loop gives an object of its own alike, where `node` sets an
    attribute of one that is made, `target`, to `value`, as it is `written`."""
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return
    owner = m.read(frame.ident, target.value.id)
    made = owner.only if owner is not None else None
    if not isinstance(made, Instance) or all(made != it for it, _ in m.place.making):
        return
    given = from_before(m, value)
    told = (
        _is_steady(m, frame, written, m.place.chain, {}) if given and _always(frame, node) else None
    )
    if told is not None:
        known = m.place.arguments.invariant_attributes.get((made.ident, target.attr), frozenset())
        m.place.arguments.invariant_attributes[made.ident, target.attr] = (
            known | given if told else known
        )


def keep_shared(m: Machine, owner: Instance, name: str, value: Value) -> None:
    """Note what of `value`, which a task sets as an attribute of an object of its own, others may
    have, too: it stays so where the task reads it again."""
    if (
        m.place.worker is None
        or m.place.worker.call.kind != THREAD
        or owner.born != m.place.worker.ident
    ):
        return
    others = {
        atom.ident
        for atom in inner(value)
        if isinstance(atom, (Instance, Tensor, Thing))
        and atom.ident > 0
        and atom.born != owner.born
    }
    if others:
        known = m.place.arguments.invariant_attributes.get((owner.ident, name))
        if known is None:
            known = m.place.arguments.invariant.get(owner.ident, frozenset())
        m.place.arguments.invariant_attributes[owner.ident, name] = known | others


def _always(frame: Frame, statement: ast.stmt) -> bool:
    """Whether each run of the function around comes to `statement`, as far as it goes."""
    return frame.function is not None and statement in getattr(frame.function.node, "body", ())


def _is_steady(
    m: Machine, frame: Frame, node: ast.expr, chain: tuple[Step, ...], names: Told
) -> bool | None:
    """Whether `node` is the same in each turn of the loops around; None: that is not told.

    `chain` is the calls that lead to `frame`, `names` what is told by now.
    """
    told: bool | None = True
    for part in descend(node):
        same: bool | None = isinstance(part, _PLAIN) or None
        if isinstance(part, ast.Name):
            key = frame.ident, part.id
            if key not in names:
                names[key] = None  # a name may be bound from itself
                names[key] = _is_steady_name(m, frame, part.id, chain, names)
            same = names[key]
        elif isinstance(part, ast.Attribute):
            same = not any(_sets(it.node, part.attr) for it in m.place.loops) or None
        elif isinstance(part, ast.Subscript):
            same = is_fixed(part.slice) or isinstance(part.slice, ast.Name) or None
        if same is False:
            return False
        told = told and same
    return told


def _sets(loop: ast.AST, name: str) -> bool:
    """Whether `loop` itself sets an attribute of that name."""
    parts = (part for part in descend(loop) if isinstance(part, ast.Attribute))
    return any(part.attr == name and isinstance(part.ctx, ast.Store) for part in parts)


def _is_steady_name(
    m: Machine, frame: Frame, name: str, chain: tuple[Step, ...], names: Told
) -> bool | None:
    found = m.lookup(frame, name)
    if found is None:
        return None
    home = found[1]
    if name in turning(home):
        return False
    if home.parent is None or home.loop_names:
        return True  # it was there before the loop
    if home is not frame or home.function is None:
        return None
    bound = m.facts.origins.get((home.ident, name))
    if bound is None:
        return _is_steady_argument(m, home.function, name, chain, names)
    statement = bound.statement
    if not isinstance(statement, ast.Assign) or not _always(frame, statement):
        return None
    return _is_steady(m, frame, statement.value, chain, names)


def _is_steady_argument(
    m: Machine, function: Function, name: str, chain: tuple[Step, ...], names: Told
) -> bool | None:
    """The same of what the last call of `chain` gives `function` under that name."""
    if not chain:
        return True
    call, caller = chain[-1].site.node, chain[-1].frame
    if not isinstance(call, ast.Call) or caller is None:
        return None
    given = _given(m, function, call)
    if given is None or name not in given:
        return None
    written = given[name]
    return written is None or _is_steady(m, caller, written, chain[:-1], names)


def _given(m: Machine, function: Function, call: ast.Call) -> dict[str, ast.expr | None] | None:
    """What `call` gives each parameter of `function` (None: nothing), where it certainly calls that
    itself; what it gives by its receiver is left out where that is made there."""
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
