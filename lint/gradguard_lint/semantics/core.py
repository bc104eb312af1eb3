"""The interpreter's state: the store, the assumptions, the modes, the budget, the record."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from gradguard_lint.semantics.events import (
    PROCESS,
    Effect,
    Modes,
    Program,
    Step,
    TaskRun,
)
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.values import (
    UNKNOWN,
    Choice,
    Conditions,
    Const,
    Imported,
    Key,
    Site,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
)
from gradguard_lint.words import words

if TYPE_CHECKING:
    from gradguard_lint.reading.source import Module

GPU_PRESENT = ("gpu-present",)
"""The key of "there is a GPU here": what ``torch.cuda.is_available()`` and its kin tell."""

STEPS = 30_000
"""Expressions that one root may take; what lies beyond stays unknown."""

ALL_STEPS = 200_000
"""Expressions that all roots of one program may take together."""

DEPTH = 14
"""Calls within calls that are followed."""


class OutOfSteps(Exception):
    """A root took more than `STEPS`."""


class Library(Protocol):
    """What the interpreter asks the project for."""

    def load(self, name: str) -> Module | None:
        """The project's module of that dotted name."""

    def is_module(self, name: str) -> bool:
        """Whether the project has it (it may be a package without ``__init__``)."""

    def starts_workers(self, name: str, wanted: str | None = None) -> bool:
        """Whether the project's module of that name (or what it gives as `wanted`) mentions a
        way to start workers."""


@dataclass(frozen=True)
class Options:
    """What the configuration says to the semantics."""

    delayed: frozenset[str] = frozenset()
    parallel: frozenset[str] = frozenset()
    info: bool = True


@dataclass
class Args:
    """The arguments of one call."""

    positional: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)
    rest: Value | None = None
    """What further positional arguments are, where ``*args`` has an unknown length."""
    open: bool = False
    """Whether ``**kwargs`` may hold more keywords."""

    def get(self, position: int | None, name: str | None = None) -> Value | None:
        """The argument at `position` or called `name`."""
        if name is not None and name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        if self.rest is not None and position is not None:
            return self.rest
        return None

    def values(self) -> Iterator[Value]:
        yield from self.positional
        if self.rest is not None:
            yield self.rest
        yield from self.keywords.values()


Store = dict[tuple[int, str], Value]


GPU_FLAGS = words(
    "gpu gpus n_gpu n_gpus ngpus num_gpus gpu_count use_gpu use_gpus use_cuda with_gpu "
    "with_cuda cuda is_cuda has_gpu has_cuda gpu_available cuda_available on_gpu enable_gpu"
)
"""Options that say whether a GPU is to be used."""


class Core:
    """State shared by all parts of the interpreter."""

    def __init__(self, library: Library, options: Options) -> None:
        self.library = library
        self.options = options
        self.store: Store = {}
        self.assumed: dict[Key, Hashable] = {}
        self.modes = Modes()
        self.worker: TaskRun | None = None
        self.chain: tuple[Step, ...] = ()
        self.stack: list[ast.AST] = []
        self.program = Program("")
        self.root = 0
        self.steps = 0
        self.spent = 0
        self.order = 0
        self.fresh = 0
        self.loop_depth = 0
        self.loops: list[Site] = []
        self.dead = False
        self.guarded_import = False
        self.statement: ast.AST | None = None
        self.defaults: dict[Key, Hashable] = {}
        """What the arguments of functions that nobody here calls are by default."""
        self.frames: dict[str, Frame] = {}
        self.loaded: Store = {}
        """What modules held when they were imported: it outlives the branch that did so."""
        self.reached: set[int] = set()
        self.seen_effects: set[tuple[Any, ...]] = set()
        self.idents: dict[Hashable, int] = {}
        self.models: set[Key] = set()
        """Unknown things that are torch modules, as their use shows."""
        self.locals_of: dict[int, set[str]] = {}
        self.last_returns: tuple[Module, str, list[tuple[Value, ast.AST]]] | None = None

    # -- identities -----------------------------------------------------------------------------

    def new_ident(self) -> int:
        self.fresh += 1
        return self.fresh

    def ident_at(self, node: ast.AST, *more: Hashable) -> int:
        """An identity for what `node` makes here, the same each time it is run from here."""
        calls = tuple(id(step.site.node) for step in self.chain[-3:])
        key = (id(node), calls, self.worker_ident, *more)
        if key not in self.idents:
            self.idents[key] = self.new_ident()
        return self.idents[key]

    def ident_of(self, key: Key) -> int:
        """The identity of something unknown."""
        place = ("unknown", key)
        if place not in self.idents:
            self.idents[place] = self.new_ident()
        return self.idents[place]

    @property
    def worker_ident(self) -> int:
        return self.worker.ident if self.worker is not None else 0

    @property
    def in_process_worker(self) -> bool:
        return self.worker is not None and self.worker.call.kind == PROCESS

    # -- the record -----------------------------------------------------------------------------

    def site(self, frame: Frame, node: ast.AST) -> Site:
        return Site(frame.module, node, frame.name, self.statement)

    def effect(self, frame: Frame, kind: str, node: ast.AST, what: str, **data: Any) -> None:
        """Record that `kind` happens at `node`."""
        if self.dead:
            return
        key = (kind, id(node), what, self.worker_ident, self.root)
        if key in self.seen_effects:
            return
        self.seen_effects.add(key)
        self.order += 1
        effect = Effect(
            kind,
            self.site(frame, node),
            what,
            self.worker,
            self.order,
            self.root,
            self.chain,
            self.modes,
            data,
        )
        self.program.effects.append(effect)
        if self.worker is not None:
            self.worker.effects.append(effect)

    def tick(self) -> None:
        self.steps += 1
        if self.steps > STEPS or self.spent + self.steps > ALL_STEPS:
            raise OutOfSteps

    # -- the store ------------------------------------------------------------------------------

    def write(self, frame: Frame, name: str, value: Value) -> None:
        self.store[(frame.outer.get(name, frame).ident, name)] = value

    def stored(self, ident: int, name: str) -> Value | None:
        """The value as it stands in the store."""
        key = (ident, name)
        value = self.store.get(key)
        return value if value is not None else self.loaded.get(key)

    def read(self, ident: int, name: str) -> Value | None:
        """The value under the assumptions that hold here."""
        value = self.stored(ident, name)
        if value is None:
            return None
        if isinstance(value.choices[0].atom, Imported):
            value = self.resolve(ident, name, value)
        return self.filtered(value)

    def resolve(self, ident: int, name: str, value: Value) -> Value:
        """What an imported name stands for; defined with the imports."""
        raise NotImplementedError

    def lookup(self, frame: Frame, name: str) -> tuple[Value, Frame] | None:
        """The value of `name` seen from `frame`, and the frame that holds it."""
        scope: Frame | None = frame.outer.get(name, frame)
        first = True
        while scope is not None:
            if first or not scope.is_class:
                value = self.stored(scope.ident, name)
                if value is not None:
                    if isinstance(value.choices[0].atom, Imported):
                        value = self.resolve(scope.ident, name, value)
                    return self.filtered(value), scope
            first = False
            scope = scope.parent
        return None

    # -- assumptions ----------------------------------------------------------------------------

    def conflicts(self, when: frozenset[tuple[Key, bool]]) -> bool:
        """Whether `when` cannot hold under what is assumed."""
        for key, truth in when:
            known = self.assumed.get(key)
            if known is not None and known != truth:
                return True
            if truth and isinstance(key, tuple) and key and key[0] == "eq":
                fixed = self.assumed.get(("value", key[1]))
                if fixed is not None and fixed != key[2]:
                    return True
        return False

    def filtered(self, value: Value) -> Value:
        """`value` without the alternatives that the assumptions rule out."""
        if not self.assumed:
            return value
        kept = []
        changed = False
        for choice in value.choices:
            if choice.when and self.conflicts(choice.when):
                changed = True
                continue
            atom = choice.atom
            if isinstance(atom, Unknown) and atom.key is not None:
                fixed = self.assumed.get(("value", atom.key))
                if fixed is not None:
                    choice = Choice(Const(fixed, type(fixed).__name__), choice.when)
                    changed = True
                else:
                    truth = self.assumed.get(atom.key)
                    if (
                        isinstance(truth, bool)
                        and isinstance(atom.key, tuple)
                        and (atom.key[0] in ("eq", "is", "cmp", "gpu-present", "not"))
                    ):
                        choice = Choice(Const(truth, "bool"), choice.when)
                        changed = True
            kept.append(choice)
        if not changed:
            return value
        return Value(tuple(kept)) if kept else UNKNOWN

    def assume(self, key: Key, truth: bool) -> None:
        if key is None:
            return
        if isinstance(key, tuple) and key and key[0] == "not":
            self.assume(key[1], not truth)
            return
        if key == ("gpu-list",):
            key = GPU_PRESENT
        self.assumed[key] = truth
        if truth and isinstance(key, tuple) and key and key[0] == "eq":
            self.assumed[("value", key[1])] = key[2]

    @property
    def gpu_absent(self) -> bool:
        """Whether this place is only reached where there is no GPU."""
        return self.assumed.get(GPU_PRESENT) is False

    def far_fetched(self, when: frozenset[tuple[Key, bool]]) -> bool:
        """Whether `when` asks for an argument that nobody here gives, against its default."""
        for key, truth in when:
            if not truth or not isinstance(key, tuple) or not key:
                continue
            if key[0] == "eq":
                if isinstance(key[2], str) and self.defaults.get(key[1], self) != key[2]:
                    return True
            elif key[0] == "among":
                if self.defaults.get(key[1], self) not in key[2]:
                    return True
            elif key[0] == "argument" and key in self.defaults and not self.defaults[key]:
                return True
        return False

    @property
    def far_fetched_here(self) -> bool:
        """Whether this place is only reached with such an argument."""
        return self.far_fetched(
            frozenset(
                (key, truth) for key, truth in self.assumed.items() if isinstance(truth, bool)
            )
        )

    # -- scoped changes -------------------------------------------------------------------------

    @contextmanager
    def with_modes(self, **changes: Any) -> Iterator[None]:
        saved = self.modes
        self.modes = replace(saved, **changes)
        try:
            yield
        finally:
            self.modes = saved

    @contextmanager
    def called_from(self, frame: Frame, node: ast.AST, message: str) -> Iterator[None]:
        saved = self.chain
        if self.worker is None or node is not self.worker.task.site.node:
            self.chain = (*saved, Step(self.site(frame, node), message))
        statement = self.statement
        try:
            yield
        finally:
            self.chain = saved
            self.statement = statement

    # -- what crosses into a process ------------------------------------------------------------

    def arrived(self, value: Value) -> Value:
        """`value` of the parent as a process worker sees it: tensors lose their history."""
        worker = self.worker_ident

        def change(atom: Any) -> Any:
            if isinstance(atom, Tensor) and atom.born != worker:
                grad = "leaf" if atom.grad == "history" else atom.grad
                return replace(atom, grad=grad, born=worker, sources=atom.sources | {atom.ident})
            if isinstance(atom, Thing) and atom.born != worker:
                return replace(atom, born=worker)
            return atom

        choices = tuple(Choice(change(choice.atom), choice.when) for choice in value.choices)
        return Value(choices) if choices != value.choices else value


Sides = tuple[Conditions, Conditions]
"""What holds where the first, and where the second of two branches was taken."""


def joined_stores(first: Store, second: Store, sides: Sides | None = None) -> Store:
    """The store after a branch: what only one side says is kept under the branch's condition."""
    if first is second:
        return first
    merged = dict(second)
    for place, value in first.items():
        other = second.get(place)
        if other is value:
            continue
        if other is None:
            merged[place] = value
        elif other != value:
            merged[place] = _joined(value, other, sides)
    return merged


def _joined(first: Value, second: Value, sides: Sides | None) -> Value:
    if sides is None:
        return join((first, second))
    left, right = set(first.atoms), set(second.atoms)
    choices = []
    for value, others, here in ((first, right, sides[0]), (second, left, sides[1])):
        impossible = {(key, not truth) for key, truth in here}
        for choice in value.choices:
            if choice.atom in others:
                choices.append(choice)
            elif not choice.when & impossible:  # else it cannot be in that branch
                choices.append(Choice(choice.atom, choice.when | here))
    return join([Value(tuple(choices))]) if choices else join((first, second))
