"""The interpreter: imports, modules, and the roots that a program is run from."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from gradguard_lint.reading.source import Module
from gradguard_lint.semantics.core import (
    Args,
    Library,
    Options,
    OutOfSteps,
    Store,
    joined_stores,
)
from gradguard_lint.semantics.events import Modes, Program
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.relevance import relevant
from gradguard_lint.semantics.statements import Statements
from gradguard_lint.semantics.values import (
    UNKNOWN,
    Bound,
    Class,
    External,
    Function,
    Imported,
    Instance,
    ProjectModule,
    Value,
    constant,
    of,
)


class Interpreter(Statements):
    """Runs one entry module, abstractly, and records what happens."""

    def __init__(self, library: Library, options: Options | None = None) -> None:
        super().__init__(library, options or Options())
        self.stars: dict[int, list[str]] = {}
        self.names: dict[str, str] = {}

    # -- modules --------------------------------------------------------------------------------

    def module_frame(self, name: str) -> Frame | None:
        """The frame of a project module, which is run on first use; None where it has none."""
        if name in self.frames:
            return self.frames[name]
        module = self.library.load(name)
        if module is None:
            return None
        frame = Frame(self.new_ident(), module)
        frame.shared = True
        self.frames[name] = frame
        before = set(self.store)
        self._run_module(frame, module, constant(name))
        self.loaded.update((key, value) for key, value in self.store.items() if key not in before)
        return frame

    def _run_module(self, frame: Frame, module: Module, name: Value) -> None:
        saved = (
            dict(self.assumed),
            self.modes,
            self.dead,
            self.loop_depth,
            self.worker,
            self.chain,
            self.statement,
        )
        self.assumed, self.modes, self.dead, self.loop_depth = {}, Modes(), False, 0
        self.worker, self.chain = None, ()
        self.store[(frame.ident, "__name__")] = name
        try:
            self.block(frame, module.tree.body)
        finally:
            (
                self.assumed,
                self.modes,
                self.dead,
                self.loop_depth,
                self.worker,
                self.chain,
                self.statement,
            ) = saved

    def module_attribute(self, frame: Frame, node: ast.AST, module: str, name: str) -> Value:
        home = self.module_frame(module)
        if home is not None:
            value = self.read(home.ident, name)
            if value is not None:
                if self.worker is not None and home.born != self.worker.ident:
                    return self.captured(frame, node, name, value, home)
                return value
            star = self.star_import(home, name)
            if star is not None:
                return star
        inner = f"{module}.{name}"
        if self.library.is_module(inner):
            return of(ProjectModule(inner))
        return UNKNOWN

    def star_import(self, frame: Frame, name: str) -> Value | None:
        for module in self.stars.get(frame.root.ident, ()):
            home = self.module_frame(module)
            if home is not None:
                value = self.read(home.ident, name)
                if value is not None:
                    return value
        return None

    # -- imports --------------------------------------------------------------------------------

    def do_Import(self, frame: Frame, node: ast.Import) -> None:
        from gradguard_lint.semantics import library

        for alias in node.names:
            if not self.guarded_import:
                library.imported(self, frame, alias, alias.name)
            if self.library.is_module(alias.name):
                target = alias.name if alias.asname else alias.name.split(".")[0]
                self.write(frame, alias.asname or target, of(ProjectModule(target)))
            elif alias.asname:
                self.write(frame, alias.asname, of(External(alias.name)))
            else:
                top = alias.name.split(".")[0]
                self.write(frame, top, of(External(top)))

    def do_ImportFrom(self, frame: Frame, node: ast.ImportFrom) -> None:
        from gradguard_lint.semantics import library

        base = self._base(frame.module, node)
        for alias in node.names:
            if alias.name == "*":
                if self.library.is_module(base):
                    self.stars.setdefault(frame.root.ident, []).append(base)
                else:
                    library.imported_star(self, frame, base)
                continue
            name = alias.asname or alias.name
            if not self.library.is_module(base):
                if not self.guarded_import:
                    library.imported(self, frame, alias, f"{base}.{alias.name}")
                self.write(frame, name, of(External(f"{base}.{alias.name}")))
                continue
            self.write(frame, name, of(Imported(base, alias.name)))

    def resolve(self, ident: int, name: str, value: Value) -> Value:
        atom = value.choices[0].atom
        if not isinstance(atom, Imported):
            return value
        self.store[(ident, name)] = UNKNOWN  # what a circular import sees
        home = self.module_frame(atom.module)
        found = self.read(home.ident, atom.name) if home is not None else None
        if found is None and home is not None:
            found = self.star_import(home, atom.name)
        if found is None:
            inner = f"{atom.module}.{atom.name}"
            found = of(ProjectModule(inner)) if self.library.is_module(inner) else UNKNOWN
        self.store[(ident, name)] = self.loaded[(ident, name)] = found
        return found

    def _base(self, module: Module, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parts = module.package.split(".") if module.package else []
        parts = parts[: len(parts) - (node.level - 1)] if node.level > 1 else parts
        return ".".join([*parts, node.module] if node.module else parts)

    # -- roots ----------------------------------------------------------------------------------

    def run(self, module: Module) -> Program:
        """Run `module` as a program, then every function of it that nothing here calls."""
        self.program = Program(module.name)
        frame = Frame(self.new_ident(), module)
        frame.shared = True
        self.frames[module.name] = frame
        self._root(partial(self._run_module, frame, module, constant("__main__")))
        snapshot = dict(self.store)
        mentioned = _mentions(module.tree)
        definitions = _definitions(module.tree)
        wanted = relevant(
            module.tree,
            [node for _, node in definitions],
            self.options.delayed | self.options.parallel,
            partial(self._brings_workers, module),
            info=self.options.info,
        )
        made: dict[int, tuple[Instance, Store, int] | None] = {}
        for again in (False, True):
            for cls, node in definitions:
                if (
                    id(node) not in wanted
                    or id(node) in self.reached
                    or (not again and node.name in mentioned)
                ):
                    continue
                self.store = dict(snapshot)
                if cls is None:
                    value = self.read(frame.ident, node.name)
                    self._root(partial(self._call_unknown, frame, node, value, None))
                    continue
                if id(cls) not in made:
                    made[id(cls)] = self._object(frame, cls)
                ready = made[id(cls)]
                if ready is None or node.name == "__init__":
                    continue
                instance, store, root = ready
                self.store = dict(store)
                method = self.find_in_class(instance.cls, node.name)
                self._root(partial(self._call_unknown, frame, node, method, instance))
                self.program.earlier[self.root] = (1, root)
        return self.program

    def _brings_workers(self, module: Module, node: ast.Import | ast.ImportFrom) -> bool:
        """Whether an import of the project brings in something that starts workers."""
        if isinstance(node, ast.Import):
            return any(self.library.starts_workers(alias.name) for alias in node.names)
        base = self._base(module, node)
        return any(self.library.starts_workers(base, alias.name) for alias in node.names)

    def _root(self, start: Callable[[], None]) -> None:
        self.root += 1
        self.spent += self.steps
        self.steps = 0
        self.assumed, self.modes, self.dead, self.loop_depth = {}, Modes(), False, 0
        self.worker, self.chain, self.stack, self.statement = None, (), [], None
        self.loops.clear()
        try:
            start()
        except OutOfSteps:
            pass

    def _object(self, frame: Frame, cls: ast.ClassDef) -> tuple[Instance, Store, int] | None:
        """An object of `cls` as its methods find it: from the module's own code, or made here."""
        holder = self.read(frame.ident, cls.name)
        atom = next(holder.of(Class), None) if holder is not None else None
        if atom is None or atom.node is not cls:
            return None
        for value in self.store.values():
            for instance in value.of(Instance):
                if instance.cls.node is cls:
                    return instance, dict(self.store), 1
        args = Args(open=True)
        init = self.find_in_class(atom, "__init__")
        for function in init.of(Function) if init is not None else ():
            args = self.standalone_arguments(function, skip=1)
        found: list[Instance] = []
        self._root(lambda: found.extend(self.instantiate(frame, cls, atom, args).of(Instance)))
        if not found:
            return None
        root = self.root
        self._prepare(frame, found[0], cls)
        return found[0], dict(self.store), root

    def _prepare(self, frame: Frame, instance: Instance, cls: ast.ClassDef) -> None:
        """Let the methods set the object's attributes; what else they do is not recorded."""
        order, root = self.order, self.root
        count, calls = len(self.program.effects), len(self.program.calls)
        seen, reached = set(self.seen_effects), set(self.reached)
        for item in cls.body:
            if (
                isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
                and item.name != "__init__"
                and _sets_attributes(item)
            ):
                before = dict(self.store)
                method = self.find_in_class(instance.cls, item.name)
                self._root(partial(self._call_unknown, frame, item, method, instance))
                self.store = joined_stores(self.store, before)
        del self.program.effects[count:], self.program.calls[calls:]
        self.seen_effects, self.reached, self.order, self.root = seen, reached, order, root

    def _call_unknown(
        self,
        frame: Frame,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        value: Value | None,
        receiver: Instance | None,
    ) -> None:
        for atom in value.of(Function) if value is not None else ():
            if atom.node is not node:
                continue
            bound = receiver is not None and "static" not in atom.marks
            args = self.standalone_arguments(atom, skip=1 if bound else 0)
            target = Bound(atom, receiver) if receiver is not None and bound else atom
            self.call(frame, node, of(target), args)
            self.chain = ()
            return
        if value is not None and not any(value.of(Function)):
            # A decorator made something else of it: run that.
            self.call(frame, node, value, Args(rest=UNKNOWN, open=True))


def _mentions(tree: ast.Module) -> set[str]:
    """The names that the module uses: a function that is not among them is a root."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
    return names


def _definitions(
    tree: ast.Module,
) -> list[tuple[ast.ClassDef | None, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions and methods of a module, in order."""
    found: list[tuple[ast.ClassDef | None, ast.FunctionDef | ast.AsyncFunctionDef]] = []

    def visit(body: list[ast.stmt], cls: ast.ClassDef | None) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append((cls, node))
            elif isinstance(node, ast.ClassDef) and cls is None:
                visit(node.body, node)
            elif isinstance(node, (ast.If, ast.Try)):
                visit(node.body, cls)
                visit(node.orelse, cls)
                if isinstance(node, ast.Try):
                    for handler in node.handlers:
                        visit(handler.body, cls)

    visit(tree.body, None)
    return found


def _sets_attributes(node: ast.AST) -> bool:
    return any(
        isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
        for item in ast.walk(node)
    )
