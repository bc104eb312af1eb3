"""Abstract values: the alternatives of an expression, each with its conditions.

A `Value` holds a few alternatives (`Choice`), each an *atom* with its conditions. An atom is
immutable and hashable; mutable parts (variables, attributes, list items) are in the state, by the
identity of their owner. Rules are silent about `Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache

from gradguard_lint.domain.conditions import NONE, Conditions, any_of
from gradguard_lint.domain.questions import Key
from pytest_gradguard.records import Record, fields, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeVar

    from gradguard_lint.reading.source import Module

WIDTH = 16
"""The most alternatives of a value; beyond, it may be anything."""

STUB = "stub"
"""The kind of classes that extend a stub class, which describes all they do."""

PRIMITIVES = "gradguard_lint.models.primitives."
"""Prefix of the names of primitives that stubs call."""

WAYS = 4
"""The most conditions kept for one alternative."""


Parts = tuple["tuple[Value, ...]", "Value | None", "tuple[Value, ...]"]
"""The first items of a sequence, the join of those between (None: there are none), and the last
items."""


class Atom(Record):
    """One alternative of a value."""


@record
class Unknown(Atom):
    """Anything. Two unknowns with one key are the same object."""

    key: Key = None
    sent: Key = None
    """The argument and task by which it reached a worker."""
    identity: Key = None
    """The key of evidence about it, if that isn't `key`. It answers no questions: in another
    iteration of a loop, another object may have this identity."""

    @property
    def is_nameless(self) -> bool:
        """Whether it has no key: evaluated again, it may be another value."""
        return self.key is None and self.sent is None

    @property
    def subject(self) -> Key:
        """The key of evidence about it."""
        return self.identity if self.identity is not None else self.key


@record
class Const(Atom):
    """A constant; `kind` distinguishes ``1``, ``1.0`` and ``True``."""

    value: Hashable
    kind: str = ""


@record
class Items(Atom):
    """A list, tuple, set or iterator; `items` is None if only the `element` is known.

    One with an `ident` is mutable: its current items are in the state (see `Machine.current`).
    """

    kind: str
    items: tuple[Value, ...] | None
    element: Value
    ident: int = 0
    count: Key = None
    """The key of their number, if it is unknown but fixed."""
    ends: Parts | None = None
    """The items at known positions, if `items` is None."""


@record
class Table(Atom):
    """A dict with its known entries; `rest` is the value of other keys."""

    entries: tuple[tuple[Hashable, Value], ...]
    rest: Value
    keys: Value | None = None
    """The other keys, if they aren't constants."""
    ident: int = 0
    missing: Value | None = None
    """The default factory."""
    keywords: bool = False
    """Whether it is a function's ``**kwargs``: nobody else changes it."""
    perhaps: tuple[tuple[Hashable, Value], ...] = ()
    """Values of keys that exist on some paths only: `ABSENT` on the others."""

    def get(self, key: Hashable) -> Value | None:
        for name, value in self.entries:
            if name == key:
                return value
        return None


@fields
class Function(Atom):
    """A function of the project (or a lambda) with its enclosing frame."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    frame: Frame
    owner: Class | None = None
    defaults: tuple[Value, ...] = ()
    kw_defaults: tuple[Value | None, ...] = ()
    marks: frozenset[str] = frozenset()
    wraps: Function | None = None
    """The function that a decorator of the program wrapped."""

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def qualified_name(self) -> str:
        """Its name with that of its class, as reports show it."""
        return f"{self.owner.name}.{self.name}" if self.owner is not None else self.name

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Function)
            and self.node is other.node
            and self.frame is other.frame
            and self.marks == other.marks
        )

    def __hash__(self) -> int:
        return hash((id(self.node), id(self.frame)))


@fields
class Class(Atom):
    """A class of the project; `bases` may be external."""

    node: ast.ClassDef
    module: Module
    frame: Frame
    bases: tuple[Atom, ...]
    body: Frame
    what: str = ""
    """The kind by its bases: ``torch``, ``keras``, ``parallel``, ``process``, `STUB` ..."""
    above: tuple[Class, ...] = ()
    """The project classes in its MRO, in order."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def full_name(self) -> str:
        return f"{self.module.name}.{self.node.name}"

    @property
    def plain(self) -> bool:
        """Whether it inherits from no library class."""
        return not any(True for _ in self.outside())

    def extends(self, name: str) -> bool:
        """Whether it is, or inherits from, the library class of this full name."""
        return any(isinstance(base, External) and base.name == name for base in self.outside())

    def outside(self) -> Iterator[Atom]:
        """The bases outside the project, also of its project bases."""
        if self.module.is_stub:
            yield External(self.full_name)
        for base in self.bases:
            if isinstance(base, Class):
                yield from base.outside()
            else:
                yield base


@record
class Instance(Atom):
    """An object of a project class; its attributes are in the store under `ident`."""

    cls: Class
    ident: int
    born: int = 0


@record
class Bound(Atom):
    """A function bound to its first argument."""

    function: Function
    receiver: Atom


@record
class Generator(Atom):
    """A lazy iterator: a generator call, with its arguments in `frame`, or a `Flow`."""

    function: Function | Flow
    frame: Frame


@record
class External(Atom):
    """A name of a library: ``torch.nn.Linear``."""

    name: str


@record
class ProjectModule(Atom):
    """A module of the project."""

    name: str


@record
class Imported(Atom):
    """A name of a project module, not yet resolved."""

    module: str
    name: str


@record
class Method(Atom):
    """A method or attribute of a library object, not yet called."""

    receiver: Atom
    name: str


@record
class Partial(Atom):
    """``functools.partial``; with `delayed` set, what ``delayed(f)`` gives."""

    function: Value
    args: tuple[Value, ...] = ()
    keywords: tuple[tuple[str, Value], ...] = ()
    method: bool = False
    """Whether it binds as methods do: ``functools.partialmethod``."""
    exact: bool = False
    """Whether these are certainly all its arguments."""


@record
class Delayed(Atom):
    """``delayed(f)``: calling it makes a `TaskCall`."""

    function: Value
    library: str = "joblib"


@record
class TaskCall(Atom):
    """A call to be made by a worker. `site` is the ``delayed(f)(...)`` expression."""

    function: Value
    args: tuple[Value, ...]
    keywords: tuple[tuple[str, Value], ...]
    site: Site
    private: frozenset[int] = frozenset()
    """Positions of the arguments that differ between tasks (-1: the function itself)."""
    private_names: frozenset[str] = frozenset()
    library: str = "joblib"
    names: tuple[str, ...] = ()
    """The arguments as written in the source; "" if they aren't."""
    repeated: bool = True
    """Whether the expression creates several tasks: it is in a loop, or maps."""
    unplaced: int | None = None
    """The position from which arguments have unknown positions."""
    unplaced_name: str = ""
    """The source text of such an argument, if there is one."""
    exact: bool = False
    """Whether these are certainly all its arguments."""


class Flow:
    """A lazy transformation of iterables: a generator expression, ``map``.

    Attributes:
        sources: the generators that it consumes.
        each: consumes the remaining items in turn, and passes each result to a callback.
        whole: consumes all items at once; the result.
    """

    __slots__ = ("each", "sources", "whole")

    def __init__(
        self,
        sources: tuple[Generator, ...],
        each: Callable[[Callable[[Value], None]], None],
        whole: Callable[[], Value],
    ) -> None:
        self.sources = sources
        self.each = each
        self.whole = whole


class Frame:
    """An active scope. Its values are in the interpreter's store.

    Attributes:
        ident: the key into the store.
        parent: the lexical scope around it.
        born: the worker that created it (0: the parent).
        lent: generator expressions that read its variables when iterated.
        name: the name of the function around it, as reports show it.
    """

    __slots__ = (
        "born",
        "cls",
        "function",
        "ident",
        "is_class",
        "lent",
        "loop_names",
        "module",
        "name",
        "outer",
        "parent",
        "self_class",
        "shared",
    )

    def __init__(
        self,
        ident: int,
        module: Module,
        parent: Frame | None = None,
        function: Function | None = None,
        *,
        is_class: bool = False,
        born: int = 0,
    ) -> None:
        self.ident = ident
        self.module = module
        self.parent = parent
        self.function = function
        self.is_class = is_class
        self.born = born
        self.outer: dict[str, Frame] = {}
        self.loop_names: list[frozenset[str]] = []
        self.self_class: Class | None = function.owner if function is not None else None
        self.shared = False
        self.lent: set[int] = set()
        self.cls: Class | None = None
        self.name = function.qualified_name if function is not None else None

    @property
    def root(self) -> Frame:
        """The module's frame."""
        frame = self
        while frame.parent is not None:
            frame = frame.parent
        return frame


class Site:
    """A node of a module, with the name of the enclosing function."""

    __slots__ = ("function", "module", "node", "statement")

    def __init__(
        self, module: Module, node: ast.AST, function: str | None, statement: ast.AST | None = None
    ) -> None:
        self.module = module
        self.node = node
        self.function = function
        self.statement = statement

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and self.node is other.node

    def __hash__(self) -> int:
        return hash(id(self.node))

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    @property
    def path(self) -> str:
        return self.module.path

    def stands_in(self, node: ast.AST) -> bool:
        """Whether its line is in `node`, which belongs to the same module."""
        first = getattr(node, "lineno", 1)
        return first <= self.line <= (getattr(node, "end_lineno", None) or first)


@record
class Tensor(Atom):
    """A tensor or array of `framework` (torch, tensorflow, cupy, numpy, dask).

    Attributes:
        grad: ``none``, ``leaf``, ``history``, ``parameter``, ``variable`` or ``unknown``.
        gpu: whether it is known to be on a GPU.
        born: the worker that created it (0: the parent).
        ident: its identity.
        severed: the parallel calls and collectives that lost the graph of its inputs, and the
            forward passes that bypassed a wrapper.
        sources: the idents of the models and parameters behind it.
    """

    framework: str
    grad: str = "none"
    gpu: bool = False
    born: int = 0
    ident: int = 0
    severed: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    maybe: frozenset[int] = frozenset()
    """The parallel calls that it is computed from alone: a backward pass ends there."""
    place: Site | None = None
    """Where it was moved to the GPU."""
    small: bool = False
    """Whether it is known to be too small for several compute threads."""
    cpu: Conditions = NONE
    """The conditions for it to be on the CPU, unless it is known to be on a GPU."""
    memory: Key = None
    """The array whose memory it uses, if that is known."""
    extent: tuple[int, ...] = ()
    """The shape of an array and the size of an element in bytes; empty if unknown."""
    strided: bool = False
    """Whether its memory may be non-contiguous: reshaping may copy."""
    whole: int = 0
    """In a thread, the identity of the tensor of which it is a view of all, or of a fixed part."""
    certain: bool = False
    """Whether it is one tensor on every path; otherwise it may be another one, or something else.
    """
    behind: frozenset[Key] = frozenset()
    """The unknown values that it is computed from, if only these can have a graph; None in it:
    something else may."""
    large: bool = False
    """Whether it is known to be large enough for several compute threads."""

    @property
    def tracked(self) -> bool:
        """Whether operations on it build a graph."""
        return self.grad in ("leaf", "history", "parameter")


@record
class Thing(Atom):
    """An object of a library class that rules know: a model, optimizer, tape, pool ...

    `kind` says which; `name` is the class's name; `parts` are the values it was created from.
    """

    kind: str
    name: str
    ident: int = 0
    born: int = 0
    gpu: bool = False
    parts: tuple[tuple[str, Value], ...] = ()
    site: Site | None = None
    small: bool = False
    """Whether a module is known to be too small for several compute threads."""

    def part(self, name: str) -> Value | None:
        for key, value in self.parts:
            if key == name:
                return value
        return None


@record
class Choice(Record):
    """One alternative and its conditions."""

    atom: Atom
    when: Conditions = NONE


if TYPE_CHECKING:
    A = TypeVar("A", bound=Atom)


@record
class Value(Record):
    """The alternatives of an expression."""

    choices: tuple[Choice, ...]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        choices = self.choices
        if len(choices) == 1:
            return (choices[0].atom,)
        return tuple([choice.atom for choice in choices])

    def of(self, kind: type[A]) -> Iterator[A]:
        """The alternatives of one kind."""
        for choice in self.choices:
            if isinstance(choice.atom, kind):
                yield choice.atom

    def tensors(self) -> Iterator[Tensor]:
        return self.of(Tensor)

    def things(self, *kinds: str) -> Iterator[Thing]:
        for thing in self.of(Thing):
            if thing.kind in kinds:
                yield thing

    def constants(self) -> list[Hashable]:
        return [atom.value for atom in self.of(Const)]

    @property
    def only(self) -> Atom | None:
        """The atom, if there is just one."""
        first = self.choices[0].atom
        for choice in self.choices[1:]:
            if choice.atom != first:
                return None
        return first

    @property
    def constant(self) -> Hashable:
        """The constant, if it is the only alternative, or None."""
        only = self.only
        return only.value if isinstance(only, Const) else None

    @property
    def is_unknown(self) -> bool:
        choices = self.choices
        if len(choices) == 1:
            return isinstance(choices[0].atom, Unknown)
        return all(isinstance(choice.atom, Unknown) for choice in choices)

    @property
    def is_nameless(self) -> bool:
        """Whether it is a single unknown value without a key."""
        only = self.choices[0].atom if len(self.choices) == 1 else None
        return isinstance(only, Unknown) and only.is_nameless

    @property
    def is_none(self) -> bool:
        """Whether all alternatives are None."""
        return all(
            isinstance(choice.atom, Const) and choice.atom.value is None for choice in self.choices
        )

    def map(self, change: Callable[[Atom], Value]) -> Value:
        """`change` applied to every alternative, under its conditions."""
        choices = self.choices
        if len(choices) == 1:
            return guarded(change(choices[0].atom), choices[0].when)
        return join([guarded(change(choice.atom), choice.when) for choice in choices])


def guarded(value: Value, when: Conditions) -> Value:
    """`value` under further conditions."""
    if not when:
        return value
    choices = [Choice(it.atom, it.when | when if it.when else when) for it in value.choices]
    return Value(tuple(choices))


def either(ways: Sequence[tuple[Value, Conditions]]) -> Value:
    """The join of `ways`; without conditions if all have the same atom."""
    if len(ways) > 1 and len({atom for value, _ in ways for atom in value.atoms}) == 1:
        return join(value for value, _ in ways)
    return join(guarded(value, when) for value, when in ways)


def of(atom: Atom) -> Value:
    return Value((Choice(atom),))


def constant(value: Hashable) -> Value:
    return _plain(value) if type(value) in _PLAIN else of(Const(value, type(value).__name__))


_PLAIN = frozenset({str, bool, int, type(None)})


@lru_cache(maxsize=4096, typed=True)
def _plain(value: Hashable) -> Value:
    """A cached constant: most are created again and again."""
    return of(Const(value, type(value).__name__))


def is_number(atom: Atom) -> bool:
    """Whether `atom` is certainly a plain number of unknown value."""
    if isinstance(atom, Unknown):
        return isinstance(atom.key, tuple) and atom.key[0] in NUMERIC
    return isinstance(atom, Thing) and atom.kind == "number"


NUMERIC = ("int", "number", "world-size")
"""First elements of keys of unknown numbers."""

RANK = ("int", "rank")
"""The key of a process's rank."""

NUMBER = of(Thing("number", "number"))
"""A plain number."""

COUNT = of(Thing("number", "count"))
"""A number of items."""

NUMBERS = of(Thing("number", "numbers"))
"""A list of numbers."""

OUTPUT = -2
"""The ident of a tensor that is the output of a model."""

GRADIENT = -404
"""The ident of a tensor that is a gradient itself."""

GRADIENTS = -405
"""The ident of a tensor that combines several gradients."""

FIGURE = -3
"""The source of a tensor that is a scalar computed from gradients, such as their norm."""

ANYTHING = -5
"""The source of a tensor that is computed from an unknown value."""

COPIED = -6
"""The source of a tensor that copies values of its other sources."""

MARKS = frozenset({OUTPUT, GRADIENT, FIGURE})
"""The sources that ``detach`` keeps."""

METHOD = "method"
"""The part of a class attribute which binds it as a method."""

UNKNOWN = of(Unknown())
NOTHING = constant(None)


def unknown(key: Key) -> Value:
    return of(Unknown(key))


ONE = "one"
"""First element of keys of unknown values that never change."""


def join(values: Iterable[Value]) -> Value:
    """All alternatives of `values`, without repetition.

    Beyond `WIDTH` alternatives, constants become one unknown; if that isn't enough, the result is
    unknown. So dropping alternatives never makes others certain.
    """
    parts = tuple(values)
    if len(parts) == 1 and len(parts[0].choices) == 1:
        return parts[0]
    return joined([choice for value in parts for choice in value.choices])


def joined(choices: Sequence[Choice]) -> Value:
    """A value of these choices, without repetition."""
    if len(choices) == 1:
        return Value((choices[0],))
    unknown = [it.atom for it in choices if type(it.atom) is Unknown]
    if len(unknown) > 1:
        choices = _without_identities(choices, unknown)
    if 1 < len(choices) <= WIDTH and len({choice.atom for choice in choices}) == len(choices):
        return Value(tuple(choices))  # the common case: no repetition
    seen: dict[Atom, list[Choice]] = {}
    for choice in choices:
        known = seen.get(choice.atom)
        if known is None:
            seen[choice.atom] = [choice]
            continue
        # Keep each condition, unless a weaker one covers it.
        new = choice.when
        for it in known:
            if it.when <= new:
                break
        else:
            atom = known[0].atom
            known[:] = [it for it in known if not new <= it.when]
            known.append(choice if choice.atom is atom else Choice(atom, new))
    if not seen:
        return UNKNOWN
    if len(seen) > WIDTH:
        seen = {atom: ways for atom, ways in seen.items() if not isinstance(atom, Const)}
        seen[Unknown()] = [Choice(Unknown())]
        if len(seen) > WIDTH:
            return UNKNOWN
    found: list[Choice] = []
    for atom, ways in seen.items():
        found += ways if len(ways) <= WAYS else [Choice(atom, any_of(it.when for it in ways))]
    return Value(tuple(found))


def _without_identities(choices: Sequence[Choice], unknown: Iterable[Unknown]) -> Sequence[Choice]:
    """`choices`, with the identity of equal unknowns dropped where it differs."""
    identities: dict[tuple[Key, Key], set[Key]] = {}
    for atom in unknown:
        identities.setdefault((atom.key, atom.sent), set()).add(atom.identity)
    if all(len(it) == 1 for it in identities.values()):
        return choices
    found = []
    for choice in choices:
        it = choice.atom
        if isinstance(it, Unknown) and len(identities[it.key, it.sent]) > 1:
            found.append(Choice(Unknown(it.key, it.sent), choice.when))
        else:
            found.append(choice)
    return found
