"""Imports of the project's modules, which run on first use, and of libraries."""

from __future__ import annotations

import ast
import re
from itertools import islice

from gradguard_lint.domain.conditions import Assumed
from gradguard_lint.domain.effects import Modes
from gradguard_lint.domain.payloads import Loaded
from gradguard_lint.domain.state import State
from gradguard_lint.domain.values import (
    UNKNOWN,
    External,
    Frame,
    Imported,
    ProjectModule,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.run_parts import Position
from gradguard_lint.reading.source import Module
from gradguard_lint.words import outermost_first


def module_frame(m: Machine, name: str, *, lasts: bool = False) -> Frame | None:
    """The frame of a project module, which runs on first use; None if there is none.

    With `lasts`, it runs where it is imported, and its modes persist.
    """
    if name in m.facts.frames:
        return m.facts.frames[name]
    module = m.project.load(name)
    if module is None:
        return None
    frame = Frame(m.new_ident(), module)
    frame.shared = True
    m.facts.frames[name] = frame
    before = m.state
    mark = before.store.mark()
    run_module(m, frame, module, constant(name), before.modes if lasts else None)
    after = m.state.store
    modes = before.modes.after(m.modes) if lasts else before.modes
    for place in after.since(mark):
        value = after.get(place)
        if value is not None:
            m.facts.loaded[place] = value
    m.state = State(after, before.assumed, m.state.past, modes, before.dead)
    return frame


def stub_value(m: Machine, stub: Module, name: str) -> Value | None:
    """The definition `name` in a library's stub; None if it has none."""
    key = f"<stub> {stub.path}"
    if key not in m.facts.frames:
        frame = m.facts.frames[key] = Frame(m.new_ident(), stub)
        frame.shared = True
        before, m.state = m.state, State()  # stubs are the same on all paths
        run_module(m, frame, stub, constant(stub.name))
        m.facts.loaded.update(m.store.held())
        m.state = before
    value = m.read(m.facts.frames[key].ident, name)
    return None if value is None or any(value.of(External)) else value


def run_module(
    m: Machine, frame: Frame, module: Module, name: Value, modes: Modes | None = None
) -> None:
    """Run a module's code, from the start of a program or with these `modes`."""
    position = Position(m.place)
    m.place.worker, m.place.chain, m.place.turns.depth, m.place.raised = None, (), 0, []
    m.place.importing, m.place.making = module.name, ()
    if not module.is_stub:
        m.program.imports.setdefault(module.name, set())
    m.state = State(m.store, Assumed(), m.state.past, modes or Modes())
    m.store[frame.ident, "__name__"] = name
    try:
        m.block(frame, module.tree.body)
        for own, what in () if module.is_stub else m.models.described_in(m, module.name):
            m.store[frame.ident, own] = what
    finally:
        position.restore(m.place)


def star_import(m: Machine, frame: Frame, name: str) -> Value | None:
    """`name`, if a ``from m import *`` provides it, directly or through other modules."""
    pending = [frame.root]
    seen: set[str] = set()
    while pending:
        for module in m.facts.star_imports.get(pending.pop().ident, ()):
            home = module_frame(m, module) if module not in seen else None
            seen.add(module)
            if home is not None:
                value = m.read(home.ident, name)
                if value is not None:
                    return value
                pending.append(home)
    return None


def do_Import(m: Machine, frame: Frame, node: ast.Import) -> None:
    for alias in node.names:
        if frame.module.is_stub:
            full = alias.name if alias.asname else alias.name.partition(".")[0]
            m.write(frame, alias.asname or full, of(External(full)))
            continue
        m.models.imported(m, frame, alias, alias.name)
        if m.project.is_module(alias.name):
            _noted(m, frame, alias, alias.name)
            target = alias.name if alias.asname else alias.name.split(".")[0]
            m.write(frame, alias.asname or target, of(ProjectModule(target)))
            _run_unnamed(m, frame, alias.name, alias.asname or target)
        elif alias.asname:
            m.write(frame, alias.asname, of(External(alias.name)))
        else:
            top = alias.name.split(".")[0]
            m.write(frame, top, of(External(top)))


def import_named(m: Machine, frame: Frame, node: ast.AST, name: str) -> Value:
    """Import the module `name`, as ``import_module`` does."""
    m.models.imported(m, frame, node, name)
    if not m.project.is_module(name):
        return of(External(name))
    _noted(m, frame, node, name)
    if frame.parent is None:
        module_frame(m, name, lasts=True)
    return of(ProjectModule(name))


def do_ImportFrom(m: Machine, frame: Frame, node: ast.ImportFrom) -> None:
    base = frame.module.base_of(node)
    ran = False
    for alias in node.names:
        if frame.module.is_stub:
            own = m.models.external(m, f"{base}.{alias.name}")
            m.write(frame, alias.asname or alias.name, own)
            continue
        if alias.name == "*":
            if m.project.is_module(base):
                _noted(m, frame, alias, base)
                m.facts.star_imports.setdefault(frame.root.ident, []).append(base)
                _run_early(m, frame, base)
            else:
                m.models.imported(m, frame, alias, base)
                m.models.imported_star(m, frame, base)
                m.facts.star_imports.setdefault(-frame.root.ident, []).append(base)
            continue
        name = alias.asname or alias.name
        if not m.project.is_module(base):
            m.models.imported(m, frame, alias, f"{base}.{alias.name}")
            m.write(frame, name, m.models.external(m, f"{base}.{alias.name}"))
            continue
        _noted(m, frame, alias, f"{base}.{alias.name}" if base else alias.name, base)
        m.write(frame, name, of(Imported(base, alias.name)))
        if base and m.project.is_module(f"{base}.{alias.name}"):
            _run_unnamed(m, frame, f"{base}.{alias.name}", name)
        elif not ran:
            _run_early(m, frame, base)
            ran = True


def _noted(m: Machine, frame: Frame, node: ast.AST, *names: str) -> None:
    """Record project modules, and their packages, that are imported at module level or in a
    function of the parent."""
    own = frame.parent is None and m.on_import
    if not own and m.place.worker is not None:
        return
    found = m.program.imports.setdefault(frame.module.name, set()) if own else set()
    for name in filter(m.project.is_module, filter(None, names)):
        found.update(outermost_first(name))
    for name in () if own else found:
        m.effect(frame, node, name, Loaded(name))


def _run_early(m: Machine, frame: Frame, module: str) -> bool:
    """Run an imported module, and its packages, at once if that has effects: starting the GPU,
    setting up workers, or registering in another module's container."""
    runs = False
    for name in outermost_first(module) if frame.parent is None else ():
        runs = not m.project.setting_up(name) <= m.facts.frames.keys() or m.project.registers(name)
        if runs:
            module_frame(m, name, lasts=True)
    return runs


def _run_unnamed(m: Machine, frame: Frame, module: str, name: str) -> None:
    """Run a module imported as `name` but never used, for its side effects."""
    if frame.parent is not None or _run_early(m, frame, module):
        return
    mentioned = m.facts.names_read.get(frame.module.name)
    if mentioned is not None:
        named = name in mentioned
    else:  # the whole of it wasn't scanned
        pattern = rb"(?<![\w.])" + name.encode() + rb"\b"
        places = re.finditer(pattern, frame.module.data)
        named = len(list(islice(places, 2))) > 1
    if not named:
        module_frame(m, module, lasts=True)


def resolve(m: Machine, ident: int, name: str, value: Value) -> Value:
    atom = value.choices[0].atom
    if not isinstance(atom, Imported):
        return value
    m.store[(ident, name)] = UNKNOWN  # what a circular import sees
    home = module_frame(m, atom.module)
    itself = home is not None and (home.ident, atom.name) == (
        ident,
        name,
    )  # a package's own submodule
    found = m.read(home.ident, atom.name) if home is not None and not itself else None
    if found is None and home is not None:
        found = star_import(m, home, atom.name)
    if found is None:
        inner = f"{atom.module}.{atom.name}"
        found = of(ProjectModule(inner)) if m.project.is_module(inner) else UNKNOWN
    m.store[(ident, name)] = m.facts.loaded[(ident, name)] = found
    return found
