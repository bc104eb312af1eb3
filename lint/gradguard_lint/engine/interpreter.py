"""The interpreter: assembles the engine's parts, and runs a program from its roots."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from types import ModuleType

from gradguard_lint.domain.conditions import Assumed
from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.options import Options
from gradguard_lint.domain.state import State, join_states
from gradguard_lint.domain.values import (
    UNKNOWN,
    Bound,
    Class,
    Frame,
    Function,
    Instance,
    Value,
    constant,
    of,
)
from gradguard_lint.engine import (
    assignments,
    attributes,
    calls,
    comprehensions,
    context_generators,
    expressions,
    imports,
    iteration,
    leaving,
    loops,
    patterns,
    statements,
)
from gradguard_lint.engine.arguments import standalone_arguments
from gradguard_lint.engine.budget import OutOfSteps
from gradguard_lint.engine.footprint import Key, asked, key_of
from gradguard_lint.engine.machine import Machine, Parts
from gradguard_lint.engine.ports import Args, Models, Project
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.engine.run_parts import Place, Position
from gradguard_lint.engine.templates import FUNCTIONS, calling_its_own, lacks_an_attribute
from gradguard_lint.engine.tree import descend, last_name

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    Definition = tuple[ast.ClassDef | None, ast.FunctionDef | ast.AsyncFunctionDef]
    """A function, and the class that contains it."""


def _by_kind(prefix: str, *modules: ModuleType) -> dict[type[ast.AST], Any]:
    """The functions of `modules` for kinds of nodes, found by their names."""
    return {
        getattr(ast, name.removeprefix(prefix)): function
        for module in modules
        for name, function in vars(module).items()
        if name.startswith(prefix)
    }


PARTS = Parts(
    _by_kind("on_", expressions, comprehensions, attributes, calls),
    {
        **_by_kind("do_", statements, assignments, leaving, loops, patterns, imports),
        ast.AsyncFor: loops.do_For,
        ast.AsyncFunctionDef: statements.do_FunctionDef,
        ast.AsyncWith: leaving.do_With,
        context_generators.Rest: leaving.rest_of_with,
        getattr(ast, "TryStar", ast.Try): leaving.do_Try,
    },
    calls.call,
    attributes.attribute,
    attributes.called_attribute,
    attributes.bind,
    assignments.assign,
    imports.resolve,
    iteration.exhaust_generators,
    iteration.exhaust_arguments,
    context_generators.method,
)


def interpret(
    project: Project, models: Models[Machine], options: Options, relevance: Relevance
) -> Program:
    """Run a module as a program, then each relevant function that nothing here has called."""
    return _Run(Machine(project, models, options, PARTS), relevance).program()


AGAIN = 2
"""The most repetitions of a root with evidence from its own use of values."""


class _Run:
    """One program: module-level code, and the roots after it."""

    def __init__(self, machine: Machine, relevance: Relevance, again: int = AGAIN) -> None:
        self.m = machine
        self.again = again
        self.relevance = relevance
        self.seen = relevance.seen
        self.module = module = relevance.module
        self.frame = Frame(machine.new_ident(), module)
        machine.facts.names_read[module.name] = self.seen.loaded
        self.after = State()
        """The state after the module-level code."""
        self.root_code: Frame | Function | None = None
        """The function called by this root, or the frame of module-level code."""

    def program(self) -> Program:
        m, module, frame = self.m, self.module, self.frame
        m.program = Program(module.name)
        frame.shared = True
        m.facts.frames[module.name] = frame
        self._root(partial(imports.run_module, m, frame, module, constant("__main__")), State())
        if self.again and self._has_late_evidence(0):
            fresh = Machine(m.project, m.models, m.options, PARTS)
            fresh.facts.evidence = m.facts.evidence.lasting()
            return _Run(fresh, self.relevance, self.again - 1).program()
        self.after = m.state
        self.after.dead = False
        self.after.assumed = Assumed()
        m.program.guarded = m.facts.before_main is not None
        if m.facts.before_main is not None:
            self.after.past = m.facts.before_main  # importers don't run it as a program
        program = m.program
        self._functions(loops=False)
        program.defaults = m.facts.defaults
        program.cut = set(m.budget.cut.values())
        program.calls_elsewhere = {
            place: line
            for place, (ident, line) in m.facts.executed_lines.items()
            if ident in m.facts.executed and place[0] != module.path
        }
        if m.options.loops:
            m.program = Program(module.name)
            self._functions(loops=True)
            program.loops = m.program.effects
        program.unfinished = m.budget.unfinished
        return program

    def _functions(self, *, loops: bool) -> None:
        """Run the relevant functions that nothing has called so far."""
        m, frame = self.m, self.frame
        wanted = self.relevance.definitions(loops=loops)
        definitions = self._callers_first(
            [it for it in _definitions(self.module.tree) if key_of(it[1]) in wanted]
        )
        made: dict[int, tuple[Instance, State] | None] = {}
        starters = self.relevance.words.starters | self.relevance.bringing_workers
        for cls, node in definitions:
            if id(node) in m.facts.executed or (
                id(node) in m.budget.cut and not _names(node, starters)
            ):
                continue
            if node.lineno in m.options.called and not loops:
                continue
            m.place.root_line = node.lineno
            m.state = self.after.copy()
            if cls is None:
                value = m.read(frame.ident, node.name)
                self._root(partial(self._call_unknown, node, value, None), m.state)
                continue
            if id(cls) not in made:
                methods = [it for of, it in definitions if of is cls]
                alone = all(it.name == "__init__" for it in methods)
                made[id(cls)] = self._object(cls, prepare=not alone)
            ready = made[id(cls)]
            if ready is None or node.name == "__init__":
                continue
            instance, state = ready
            method = m.find_in_class(instance.cls, node.name)
            self._root(partial(self._call_unknown, node, method, instance), state.copy())
        self._inherited(made, wanted)

    def _callers_first(self, definitions: list[Definition]) -> list[Definition]:
        """The definitions sorted callers first, as far as there are no cycles; those that run in
        threads last.

        Methods of different classes aren't ordered, as a class may call another's methods on its
        own objects.
        """
        named: dict[str, list[int]] = {}
        for place, (_, node) in enumerate(definitions):
            for word in (node.name, asked(node.name)):
                named.setdefault(word, []).append(place)
        found: list[Definition] = []
        seen: set[int] = set()
        waiting = [(place, False) for place in range(len(definitions))]
        while waiting:
            place, is_done = waiting.pop()
            if is_done:
                found.append(definitions[place])
            elif place not in seen:
                seen.add(place)
                cls, node = definitions[place]
                _, mentioned = self.seen.definitions[key_of(node)]
                others = set().union(*(named[word] for word in mentioned & named.keys()))
                waiting.append((place, True))
                waiting += (
                    (other, False)
                    for other in sorted(others)
                    if cls is None or definitions[other][0] in (None, cls)
                )
        later = self.relevance.in_threads
        found.reverse()
        return sorted(found, key=lambda it: key_of(it[1]) in later)

    def _inherited(self, made: dict[int, tuple[Instance, State] | None], wanted: set[Key]) -> None:
        """Run relevant inherited methods that weren't called for a class, as they may call its
        overrides."""
        m = self.m
        bringing = self.relevance.bringing_workers
        classes = [it for it in self.module.tree.body if isinstance(it, ast.ClassDef)]
        reached = set(m.facts.executed)
        words = self.relevance.words
        starters = words.starters
        words_to_find = starters | words.trains
        for cls in classes:
            atom = self._class(cls)
            if atom is None:
                continue
            calling = {
                id(it)
                for home, it in calling_its_own(atom)
                if (home is not self.module or key_of(it) in wanted) and _names(it, words_to_find)
            }
            if calling and lacks_an_attribute(atom):
                continue  # abstract: only subclasses have instances
            brings = not bringing.isdisjoint(map(last_name, cls.bases))
            if not calling and not brings:
                continue
            if id(cls) not in made:
                m.state = self.after.copy()
                made[id(cls)] = self._object(cls, prepare=False)
            ready = made[id(cls)]
            if ready is None:
                continue
            instance, state = ready
            for node in (node for above in instance.cls.above for node in above.node.body):
                if not isinstance(node, FUNCTIONS) or node.name == "__init__":
                    continue
                if id(node) in calling:
                    if (id(node), id(cls)) in m.facts.executed_methods:
                        continue
                elif not brings or id(node) in reached or not _names(node, starters):
                    continue
                method = m.find_in_class(instance.cls, node.name)
                m.place.root_line = cls.lineno
                self._root(partial(self._call_unknown, node, method, instance), state.copy())

    def _root(self, start: Callable[[], None], state: State) -> None:
        m = self.m
        m.place.root += 1
        for left in reversed(range(AGAIN + 1)):
            recorded, before = iteration.Checkpoint(m), state.copy()
            m.budget.begin(first=m.place.root == 1)
            m.state = state
            m.facts.evidence.is_late = m.facts.evidence.is_open = False
            m.state.assumed, m.state.dead = Assumed(), False
            Position(Place()).restore(m.place)
            self.root_code = self.frame if m.place.root == 1 else None
            try:
                start()
            except OutOfSteps:
                m.state.dead = False
            if m.place.root == 1 or not left or not self._has_late_evidence(recorded.calls):
                break
            recorded.put_back(m)
            state = before
        if m.budget.is_cutting and self.root_code is not None:
            m.leave_unfinished(self.root_code)

    def _has_late_evidence(self, calls: int) -> bool:
        """Whether the last root proved facts that may change its results: it started workers (after
        `calls`), or has open effects."""
        evidence = self.m.facts.evidence
        return evidence.is_late and (evidence.is_open or len(self.m.program.calls) > calls)

    def _class(self, cls: ast.ClassDef) -> Class | None:
        """The class that module-level code created for `cls`."""
        holder = self.m.read(self.frame.ident, cls.name)
        atom = next(holder.of(Class), None) if holder is not None else None
        return atom if atom is not None and atom.node is cls else None

    def _object(self, cls: ast.ClassDef, *, prepare: bool) -> tuple[Instance, State] | None:
        """An object of `cls` for its methods, from module-level code or created here, then prepared
        by its methods if `prepare`."""
        m, frame = self.m, self.frame
        atom = self._class(cls)
        if atom is None:
            return None
        for value in m.store.held().values():
            for instance in value.of(Instance):
                if instance.cls.node is cls:
                    return instance, m.state
        args = Args(open=True)
        init = m.find_in_class(atom, "__init__")
        for function in init.of(Function) if init is not None else ():
            args = standalone_arguments(m, function, skip=1)
        found: list[Instance] = []
        self._root(
            lambda: found.extend(calls.instantiate(m, frame, cls, atom, args).of(Instance)),
            m.state,
        )
        if not found:
            return None
        if prepare:
            self._prepare(found[0], cls)
        return found[0], m.state

    def _prepare(self, instance: Instance, cls: ast.ClassDef) -> None:
        """Run methods to set the object's attributes, without recording effects."""
        m = self.m
        recorded, root, reached = iteration.Checkpoint(m), m.place.root, set(m.facts.executed)
        state, m.budget.preparing = m.state, True
        for item in self._preparing(cls):
            method = m.find_in_class(instance.cls, item.name)
            before = state.copy()
            self._root(partial(self._call_unknown, item, method, instance), state.copy())
            state = join_states([m.state, before]) or before
        m.state, m.place.root, m.facts.executed = state, root, reached
        m.state.assumed = Assumed()
        recorded.put_back(m)
        m.budget.preparing = False

    def _preparing(self, cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """The methods that set attributes; private ones that may create tensors are run through
        their callers."""
        methods = [it for it in cls.body if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef))]
        uses = {
            node: {part.attr for part in descend(node) if isinstance(part, ast.Attribute)}
            - {node.name}
            for node in methods
        }
        used = frozenset[str]().union(*uses.values())
        setting = {node for node in methods if _sets_attributes(node)}
        making = self.relevance.making
        while True:
            inner = {
                node.name
                for node in setting
                if _is_private(node.name) and node.name in used and key_of(node) in making
            }
            calling = {node for node in methods if inner & uses[node]} - setting
            if not calling:
                break
            setting |= calling
        return [it for it in methods if it in setting and it.name not in inner | {"__init__"}]

    def _call_unknown(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        value: Value | None,
        receiver: Instance | None,
    ) -> None:
        m, frame = self.m, self.frame
        if id(node) in m.budget.cut and not m.budget.preparing:
            m.program.unsure.add(m.place.root)
        for atom in value.of(Function) if value is not None else ():
            inside = atom.wraps
            if atom.node is not node and (inside is None or inside.node is not node):
                continue
            bound = receiver is not None and "static" not in atom.marks
            args = standalone_arguments(m, inside or atom, skip=1 if bound else 0)
            if inside is not None:
                args = _as_positional(args, inside)
            target = Bound(atom, receiver) if receiver is not None and bound else atom
            self.root_code = atom
            result = m.iterated(frame, node, m.call(frame, node, of(target), args))
            m.place.chain = ()
            if receiver is not None:
                m.models.given_back(m, frame, node, receiver, result)
            return
        if value is not None and not any(value.of(Function)):
            # A decorator replaced it: run the replacement.
            m.call(frame, node, value, Args(rest=UNKNOWN, open=True))


def _as_positional(args: Args, function: Function) -> Args:
    """`args` with keywords passed by position, as a wrapper may name them differently."""
    spec = function.node.args
    names = [it.arg for it in (*spec.posonlyargs, *spec.args) if it.arg in args.keywords]
    return Args(
        [args.keywords[name] for name in names],
        {name: value for name, value in args.keywords.items() if name not in names},
        open=args.open,
    )


def _definitions(tree: ast.Module) -> list[Definition]:
    """The functions and methods of a module, in order."""
    found: list[Definition] = []

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


def _names(node: ast.AST, words: frozenset[str]) -> bool:
    return any(last_name(part) in words for part in descend(node) if isinstance(part, ast.expr))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _sets_attributes(node: ast.AST) -> bool:
    return any(
        isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
        for item in descend(node)
    )
