"""torch: submodules, however the program accesses them.

A known submodule is itself. An unknown one represents each of them (`PARTS`): what is done to each
is done to the whole. About some of them nothing is certain.
"""

from __future__ import annotations

import ast

from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.shapes import items, sequence
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Const,
    Frame,
    Instance,
    Items,
    Method,
    Table,
    Thing,
    Unknown,
    Value,
    constant,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.transfers import frozen

GIVES = ("children", "modules", "named_children", "named_modules")
"""Methods that return submodules."""


def proved(m: Machine, subject: Key, born: int) -> Thing:
    """The module that the unknown `subject` is proved to be; `born`: its worker."""
    return Thing("model", "Module", ident_of(m, subject), born)


def ident_of(m: Machine, subject: Key) -> int:
    """The identity of an unknown value of proved kind."""
    ident = m.ident_of(subject)
    m.facts.evidence.subjects[ident] = subject
    return ident


def kept(m: Machine, ident: int, args: Args) -> None:
    """Record the modules that a container is created from."""
    values = args.positional
    parts = {str(number): value for number, value in enumerate(values)}
    only = values[0].only if len(values) == 1 else None
    if isinstance(only, Table) and all(isinstance(key, str) for key, _ in only.entries):
        parts = {str(key): value for key, value in only.entries}
    if args.rest is not None:
        parts["*"] = args.rest
    if all(map(_are_modules, parts.values())):
        frozen.keep_parts(m, ident, parts)


def _are_modules(value: Value) -> bool:
    return all(frozen.module_itself(it) or frozen.whole_of(it) is not None for it in value.atoms)


_BOUNDS = (int, type(None))


def each(whole: Atom) -> Value:
    """A representative of each submodule of `whole`."""
    return unknown((frozen.PARTS, whole))


def given(m: Machine, module: Atom, name: str) -> Value:
    """The result of a method that returns submodules."""
    if isinstance(module, (Instance, Thing)):
        frozen.as_made(m, module.ident)
    one, known = each(module), None if name.endswith("modules") else _known(m, module)
    if name.startswith("named"):
        one = items("tuple", (UNKNOWN, one))
        pairs = [items("tuple", (constant(key), value)) for key, value in known or ()]
        known = None if known is None else list(zip(dict(known), pairs, strict=True))
    if known is None:
        return sequence(one, "generator")
    return of(Items("generator", tuple(value for _, value in known), one))


def iterated(m: Machine, atom: Atom) -> Value | None:
    """The items of a module, or of some of its submodules; None for others."""
    if frozen.module_itself(atom):
        return given(m, atom, "children")
    if not isinstance(atom, Method):
        return None
    whole, picked = _picked(m, atom)
    if ":" in atom.name and picked is not None:
        return items("generator", [_at(m, atom.receiver, str(place)) for place, _ in picked])
    modules = modules_of_part(m, atom)
    if modules is None:
        return sequence(some(atom)) if _of_module(atom) else None
    only = modules.only
    return given(m, only, "children") if whole is not None and only is not None else None


def some(whole: Atom) -> Value:
    """Some unknown submodules of `whole`."""
    return of(Method(whole, "[...]"))


def by_path(m: Machine, frame: Frame, node: ast.AST, module: Atom, path: Value) -> Value:
    """``module.get_submodule(path)``."""
    dotted = path.constant
    if not isinstance(dotted, str):
        return some(module)
    found = of(module)
    for name in dotted.split(".") if dotted else ():
        if not all(isinstance(it, (Instance, Method, Thing)) for it in found.atoms):
            return some(module)
        found = m.attribute(frame, node, found, name)
    return found


def named(m: Machine, value: Value) -> Value | None:
    """The submodule ``getattr(value, name)`` of unknown name."""
    only = value.only
    return some(only) if only is not None and frozen.module_itself(only) else None


def _of_module(atom: Atom) -> bool:
    while isinstance(atom, Method):
        atom = atom.receiver
    return frozen.module_itself(atom)


def _at(m: Machine, whole: Atom, place: str) -> Value:
    """The submodule at a place in `whole`; a project object is itself."""
    part = Method(whole, f"[{place}]")
    modules = modules_of_part(m, part)
    own = modules is not None and any(modules.of(Instance))
    return modules if modules is not None and own else of(part)


def _known(m: Machine, module: Atom) -> list[tuple[str, Value]] | None:
    """The direct submodules of `module` with names; None if they aren't all known."""
    if isinstance(module, Thing):
        names = _names(m, module.ident)
        if names is None:
            return None
        return [(name, _at(m, module, str(place))) for place, name in enumerate(names)]
    if not isinstance(module, Instance) or m.find_in_class(module.cls, "forward") is None:
        return None
    found = []
    for name, value in m.fields(module.ident):
        if len(value.choices) > 1 or isinstance(value.only, (Items, Table, Unknown)):
            return None
        if value.only is not None and frozen.module_itself(value.only):
            found.append((name, value))
    return found or None


def _names(m: Machine, ident: int) -> tuple[str, ...] | None:
    """The names of a container's parts, if their positions are known."""
    recorded = m.read(ident, frozen.ALL_PARTS)
    names = recorded.constant if recorded is not None else None
    return names if isinstance(names, tuple) and "*" not in names else None


def count(m: Machine, module: Atom) -> int | None:
    """The number of modules in a container."""
    names = _names(m, module.ident) if isinstance(module, Thing) else None
    return None if names is None else len(names)


def at(m: Machine, frame: Frame, node: ast.AST, module: Atom, index: Value) -> Value:
    """``module[index]``, as a part of `module`."""
    place = ast.unparse(node.slice) if isinstance(node, ast.Subscript) else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        bounds = (node.slice.lower, node.slice.upper, node.slice.step)
        values = [m.eval(frame, part).only for part in bounds]
        settled = all(isinstance(it, Const) and type(it.value) in _BOUNDS for it in values)
        place = ":".join(str(it.value) for it in values if isinstance(it, Const)) if settled else ""
    elif isinstance(index.only, Const):
        place = str(index.only.value)
    else:
        place = ""
    return _at(m, module, place or "...")


def modules_of_part(m: Machine, part: Atom) -> Value | None:
    """The modules that `part` of a module stands for; None if they are unknown."""
    if not isinstance(part, Method):
        return of(part) if frozen.module_itself(part) else None
    whole, picked = _picked(m, part)
    found = [m.read(whole.ident, name) for _, name in picked or ()] if whole is not None else []
    return join([it for it in found if it is not None]) if found else None


_AWAY = "<away>"
"""Store key of a module: whether it may have left the CPU."""


def moved(m: Machine, module: Atom, *, away: bool, depth: int = 4) -> None:
    """Record whether a module, with its submodules, may have left the CPU."""
    if frozen.module_itself(module) and isinstance(module, (Instance, Thing)):
        m.store[module.ident, _AWAY] = constant(away)
        for _, value in list(m.fields(module.ident)) if depth else ():
            for part in frozen.modules_in(m, value):
                moved(m, part, away=away, depth=depth - 1)


def is_away(m: Machine, ident: int) -> bool:
    """Whether the module `ident` may have left the CPU."""
    away = m.read(ident, _AWAY)
    return away is not None and away.constant is not False


def _picked(m: Machine, part: Method) -> tuple[Thing | None, list[tuple[int, str]] | None]:
    """The container of `part`, with the positions and names of the modules that it selects."""
    modules = modules_of_part(m, part.receiver)
    whole = modules.only if modules is not None else None
    names = _names(m, whole.ident) if isinstance(whole, Thing) else None
    if names is None or not isinstance(whole, Thing):
        return None, None
    there = [*enumerate(names)]
    name = part.name.strip("[]")
    if part.name == name:
        return whole, [it for it in there if it[1] == name]
    if ":" in name:
        bounds = [None if it == "None" else int(it) for it in name.split(":")]
        return whole, there[slice(*bounds)] if bounds[2] != 0 else None
    number = int(name) if name.lstrip("-").isdigit() else len(names)
    return whole, [there[number]] if -len(names) <= number < len(names) else None


def behind(key: object) -> Instance | Thing | None:
    """The module of which an unknown value is a part, or an attribute of one."""
    while isinstance(key, tuple) and len(key) > 1 and key[0] in ("attr", "item", "call"):
        key = key[1]
    return frozen.whole_of(Unknown(key)) if isinstance(key, tuple) else None
