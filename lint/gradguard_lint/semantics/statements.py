"""Statements: what they bind, where they branch, and what they leave behind."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from gradguard_lint.semantics import library
from gradguard_lint.semantics.calls import Calls
from gradguard_lint.semantics.core import Store, joined_stores
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.values import (
    UNKNOWN,
    Atom,
    Class,
    Const,
    External,
    Function,
    Instance,
    Items,
    ProjectModule,
    Table,
    Tensor,
    Unknown,
    Value,
    join,
    of,
    sequence,
)


class Statements(Calls):
    """Execution of statements. `dead` is set where the rest of a block is not reached."""

    def block(self, frame: Frame, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.dead:
                return
            self.statement = statement
            self.tick()
            method: Any = getattr(self, "do_" + statement.__class__.__name__, None)
            if method is not None:
                method(frame, statement)

    def run_body(self, inner: Frame, code: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        dead = self.dead
        if dead:
            return
        try:
            self.block(inner, code.body)
        finally:
            self.dead = dead

    # -- binding --------------------------------------------------------------------------------

    def do_Expr(self, frame: Frame, node: ast.Expr) -> None:
        self.eval(frame, node.value)

    def do_Assign(self, frame: Frame, node: ast.Assign) -> None:
        value = self.eval(frame, node.value)
        for target in node.targets:
            self.assign(frame, target, value)

    def do_AnnAssign(self, frame: Frame, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(frame, node.target, self.eval(frame, node.value))

    def do_AugAssign(self, frame: Frame, node: ast.AugAssign) -> None:
        old = self.eval(frame, node.target)
        value = self.eval(frame, node.value)
        library.in_place(self, frame, node, old)
        only = old.only
        if isinstance(only, Items) and isinstance(node.op, ast.Add):
            added = self.element(value)
            joined = added if only.items == () else join((only.element, added))
            self.assign(frame, node.target, sequence(joined, only.kind))
            return
        self.assign(frame, node.target, self.operate(frame, node, node.op, old, value))

    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            holder = frame.outer.get(target.id)
            if holder is not None:
                library.global_written(self, frame, target, target.id, value, holder)
            self.write(frame, target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(frame, target, value)
        elif isinstance(target, ast.Starred):
            self.assign(frame, target.value, sequence(self.element(value)))
        elif isinstance(target, ast.Attribute):
            owner = self.eval(frame, target.value)
            for atom in owner.atoms:
                if isinstance(atom, Instance):
                    self.store[(atom.ident, target.attr)] = value
                elif isinstance(atom, Class):
                    self.store[(atom.body.ident, target.attr)] = value
                elif isinstance(atom, Unknown) and target.attr == "requires_grad":
                    if True in value.constants():
                        leaf = Tensor(
                            "torch", "leaf", False, self.worker_ident, self.ident_at(target)
                        )
                        self.rebind(frame, target.value, of(leaf))
                elif isinstance(atom, Unknown) and atom.key is not None:
                    self.store[(0, str(("attr", atom.key, target.attr)))] = value
                elif isinstance(atom, ProjectModule):
                    home = self.module_frame(atom.name)
                    if home is not None:
                        library.global_written(self, frame, target, target.attr, value, home)
                        self.store[(home.ident, target.attr)] = value
                else:
                    changed = library.set_attribute(self, frame, target, atom, value)
                    if changed is not None:
                        self.rebind(frame, target.value, changed)
        elif isinstance(target, ast.Subscript):
            self._store_item(frame, target, value)

    def _unpack(self, frame: Frame, target: ast.Tuple | ast.List, value: Value) -> None:
        only = value.only
        starred = any(isinstance(item, ast.Starred) for item in target.elts)
        if (
            isinstance(only, Items)
            and only.items is not None
            and not starred
            and len(only.items) == len(target.elts)
        ):
            for item, part in zip(target.elts, only.items, strict=True):
                self.assign(frame, item, part)
            return
        if (
            not starred
            and len(value.choices) > 1
            and all(
                isinstance(atom, Items)
                and atom.items is not None
                and len(atom.items) == len(target.elts)
                for atom in value.atoms
            )
        ):
            for index, item in enumerate(target.elts):
                parts = [atom.items[index] for atom in value.of(Items) if atom.items is not None]
                self.assign(frame, item, join(parts))
            return
        if isinstance(only, Unknown) and only.key is not None:
            for index, item in enumerate(target.elts):
                self.assign(frame, item, of(Unknown(("item", only.key, index))))
            return
        element = self.element(value)
        for item in target.elts:
            self.assign(frame, item, element)

    def _store_item(self, frame: Frame, target: ast.Subscript, value: Value) -> None:
        holder = self.eval(frame, target.value)
        index = self.eval(frame, target.slice)
        library.set_item(self, frame, target, holder, index, value)
        only = holder.only
        new: Value | None = None
        if isinstance(only, Table):
            if isinstance(index.only, Const):
                entries = dict(only.entries)
                entries[index.constant] = value
                new = of(Table(tuple(entries.items()), only.rest, only.keys))
            else:
                rest = value if only.rest.is_unknown else join((only.rest, value))
                keys = index if only.keys is None else join((only.keys, index))
                new = of(Table(only.entries, rest, keys))
        elif isinstance(only, Items) and not isinstance(target.slice, ast.Slice):
            empty = only.element.is_unknown
            new = sequence(value if empty else join((only.element, value)), only.kind)
        if new is not None:
            self.rebind(frame, target.value, new)

    def do_Delete(self, frame: Frame, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.store.pop((frame.ident, target.id), None)

    def do_Global(self, frame: Frame, node: ast.Global) -> None:
        for name in node.names:
            frame.outer[name] = frame.root

    def do_Nonlocal(self, frame: Frame, node: ast.Nonlocal) -> None:
        for name in node.names:
            scope = frame.parent
            while scope is not None:
                if (scope.ident, name) in self.store and not scope.is_class:
                    frame.outer[name] = scope
                    break
                scope = scope.parent

    # -- control flow ---------------------------------------------------------------------------

    def do_Return(self, frame: Frame, node: ast.Return) -> None:
        value = self.eval(frame, node.value)
        frame.returns.append((value, node))
        self.dead = True

    def do_Raise(self, frame: Frame, node: ast.Raise) -> None:
        if node.exc is not None:
            self.eval(frame, node.exc)
        self.dead = True

    def do_Break(self, frame: Frame, node: ast.Break) -> None:
        self.dead = True

    do_Continue = do_Break

    def do_Assert(self, frame: Frame, node: ast.Assert) -> None:
        test = self.eval(frame, node.test)
        if not self.enter_branch(frame, node.test, test, True):
            self.dead = True

    def do_If(self, frame: Frame, node: ast.If) -> None:
        test = self.eval(frame, node.test)
        sides = (self.condition(test, True), self.condition(test, False))
        before: Store = dict(self.store)
        assumed = dict(self.assumed)
        outcomes: list[tuple[Store, dict[Any, Any]] | None] = []
        for truth, body in ((True, node.body), (False, node.orelse)):
            self.store, self.assumed, self.dead = dict(before), dict(assumed), False
            if self.enter_branch(frame, node.test, test, truth):
                self.block(frame, body)
            else:
                self.dead = True
            outcomes.append(None if self.dead else (self.store, self.assumed))
        first, second = outcomes
        self.dead = first is None and second is None
        if first is not None and second is not None:
            self.store = joined_stores(first[0], second[0], sides)
            self.assumed = {
                k: v for k, v in first[1].items() if k in second[1] and second[1][k] == v
            }
        else:
            kept = first or second
            if kept is not None:
                self.store, self.assumed = kept

    def do_For(self, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
        source = self.eval(frame, node.iter)
        names = frozenset(_stored_names(node))
        only = source.only
        turns: list[Value] = [self.element(source)]
        if isinstance(only, Items) and only.items is not None and 0 < len(only.items) <= 3:
            turns = list(only.items)
        elif isinstance(only, Items) and only.items == ():
            turns = []
        self.loops.append(self.site(frame, node))
        self._loop(frame, node.body, turns, node.target, names)
        self.loops.pop()
        if not self.dead:
            self.block(frame, node.orelse)

    do_AsyncFor = do_For

    def do_While(self, frame: Frame, node: ast.While) -> None:
        test = self.eval(frame, node.test)
        assumed = dict(self.assumed)
        if not self.enter_branch(frame, node.test, test, True):
            self.assumed = assumed
            self.block(frame, node.orelse)
            return
        self.assumed = assumed
        names = frozenset(_stored_names(node))
        self._loop(frame, node.body, [UNKNOWN], None, names)
        if not self.dead:
            self.block(frame, node.orelse)

    def _loop(
        self,
        frame: Frame,
        body: list[ast.stmt],
        turns: list[Value],
        target: ast.expr | None,
        names: frozenset[str],
    ) -> None:
        before = dict(self.store)
        assumed = dict(self.assumed)
        if len(turns) == 1 and self.loop_depth < 2:
            turns = turns * 2
        self.loop_depth += 1
        frame.loop_names.append(names)
        try:
            for turn in turns:
                if target is not None:
                    self.assign(frame, target, turn)
                self.block(frame, body)
                self.dead = False
                self.assumed = dict(assumed)
        finally:
            frame.loop_names.pop()
            self.loop_depth -= 1
        if self.loop_depth == 0 or len(turns) != 1:
            # The body ran: results that only it makes are of interest, not their absence.
            for place, value in before.items():
                if place not in self.store:
                    self.store[place] = value

    def do_Try(self, frame: Frame, node: ast.Try) -> None:
        before = dict(self.store)
        assumed = dict(self.assumed)
        guarded = self.guarded_import
        self.guarded_import = guarded or any(_catches_imports(item) for item in node.handlers)
        self.block(frame, node.body)
        if not self.dead:
            self.block(frame, node.orelse)
        alive: list[Store] = [] if self.dead else [self.store]
        after = self.store
        # Only a handler for a missing import says what the names are without it.
        for handler in node.handlers:
            self.store, self.assumed, self.dead = joined_stores(before, after), dict(assumed), False
            if handler.name:
                self.store[(frame.ident, handler.name)] = UNKNOWN
            self.block(frame, handler.body)
            if not self.dead:
                alive.append(self.store)
        self.guarded_import = guarded
        self.dead = not alive
        self.assumed = assumed
        self.store = alive[0] if alive else after
        for other in alive[1:]:
            self.store = joined_stores(self.store, other)
        dead = self.dead
        self.dead = False
        self.block(frame, node.finalbody)
        self.dead = dead or self.dead

    do_TryStar = do_Try

    def do_With(self, frame: Frame, node: ast.With | ast.AsyncWith) -> None:
        modes = self.modes
        entered = []
        for item in node.items:
            value = self.eval(frame, item.context_expr)
            bound = library.enter_context(self, frame, item.context_expr, value)
            entered.append(value)
            if item.optional_vars is not None:
                self.assign(frame, item.optional_vars, bound)
        self.block(frame, node.body)
        for value in entered:
            library.exit_context(self, frame, node, value)
        self.modes = modes

    do_AsyncWith = do_With

    def do_Match(self, frame: Frame, node: ast.Match) -> None:
        self.eval(frame, node.subject)
        before = dict(self.store)
        alive: list[Store] = [before]
        for case in node.cases:
            self.store, self.dead = dict(before), False
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None)
                if isinstance(name, str):
                    self.write(frame, name, UNKNOWN)
            self.block(frame, case.body)
            if not self.dead:
                alive.append(self.store)
        self.dead = False
        self.store = alive[0]
        for other in alive[1:]:
            self.store = joined_stores(self.store, other)

    # -- definitions ----------------------------------------------------------------------------

    def do_FunctionDef(self, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        frame.shared = True
        scope: Frame | None = frame
        while scope is not None:
            scope.shared = True
            scope = scope.parent
        defaults = tuple(self.eval(frame, item) for item in node.args.defaults)
        kw_defaults = tuple(
            self.eval(frame, item) if item is not None else None for item in node.args.kw_defaults
        )
        owner = frame.cls if frame.is_class else None
        function = Function(node, frame.module, frame, owner, defaults, kw_defaults)
        value = of(function)
        for decorator in reversed(node.decorator_list):
            value = library.decorate(self, frame, decorator, value, function)
        self.write(frame, node.name, value)

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, frame: Frame, node: ast.ClassDef) -> None:
        frame.shared = True
        bases: list[Atom] = []
        for base in node.bases:
            value = self.eval(frame, base)
            bases.extend(atom for atom in value.atoms if isinstance(atom, (Class, External)))
        body = Frame(
            self.new_ident(), frame.module, frame, frame.function, is_class=True, born=frame.born
        )
        cls = Class(node, frame.module, frame, tuple(bases), body)
        body.cls = cls
        dead = self.dead
        self.block(body, node.body)
        self.dead = dead
        self.write(frame, node.name, of(cls))


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {item.id for item in ast.walk(handler.type) if isinstance(item, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"})


def _stored_names(node: ast.AST) -> set[str]:
    """The names that a loop binds, in its head and in its body."""
    names = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            names.add(item.id)
    return names
