"""Abstract values: what an expression may be, with the conditions under which it is so.

A `Value` holds a few alternatives (`Choice`), each an *atom* with the conditions that it was made
under. An atom is immutable and hashable; what can change (variables, attributes, what a list
holds) lives in the state, under the identity of what it belongs to. What is not known is
`Unknown`, and rules are silent about it.
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
"""How many alternatives a value keeps: with more of them it may be anything."""

STUB = "stub"
"""What a class is that extends one of a library's stub, which says all that it does."""

PRIMITIVES = "gradguard_lint.models.primitives."
"""Where the full names of the primitives begin that stubs call."""

WAYS = 4
"""How many ways to come by one alternative are told apart."""


Parts = tuple["tuple[Value, ...]", "Value | None", "tuple[Value, ...]"]
"""The first items of a sequence, what any of those between may be (None: there are none), and the
last ones."""


class Atom(Record):
    """One alternative of what a value may be."""


@record
class Unknown(Atom):
    """Anything. Two unknowns with the same key are the same thing."""

    key: Key = None
    sent: Key = None
    """As which argument of which task it came to a worker."""
    identity: Key = None
    """What evidence about it is kept under, where that is not its key. It answers no question:
    in another turn of a loop, something else may have the same identity."""

    @property
    def is_nameless(self) -> bool:
        """Whether it has no key: evaluated again, it may be another value."""
        return self.key is None and self.sent is None

    @property
    def subject(self) -> Key:
        """What evidence about it is kept under."""
        return self.identity if self.identity is not None else self.key


@record
class Const(Atom):
    """A constant; `kind` keeps ``1``, ``1.0`` and ``True`` apart."""

    value: Hashable
    kind: str = ""


@record
class Items(Atom):
    """A list, tuple, set or iterator; `items` is None where only the `element` is known.

    One with an `ident` can change: what it holds now is in the state (see `Machine.current`).
    """

    kind: str
    items: tuple[Value, ...] | None
    element: Value
    ident: int = 0
    count: Key = None
    """How many there are, where they are not known and can never be others."""
    ends: Parts | None = None
    """What is known of the places where `items` is None."""


@record
class Table(Atom):
    """A dict with its known entries; `rest` is what other keys give."""

    entries: tuple[tuple[Hashable, Value], ...]
    rest: Value
    keys: Value | None = None
    """What the keys are, where they are no constants."""
    ident: int = 0
    missing: Value | None = None
    """What is called for a key that it does not have."""
    keywords: bool = False
    """Whether it is the keywords that a function was given: nobody else changes it."""
    perhaps: tuple[tuple[Hashable, Value], ...] = ()
    """What some of its other keys give, which it has on some ways only: `ABSENT` on the others."""

    def get(self, key: Hashable) -> Value | None:
        for name, value in self.entries:
            if name == key:
                return value
        return None


@fields
class Function(Atom):
    """A function of the project (or a lambda) with the frame that it closes over."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    frame: Frame
    owner: Class | None = None
    defaults: tuple[Value, ...] = ()
    kw_defaults: tuple[Value | None, ...] = ()
    marks: frozenset[str] = frozenset()
    wraps: Function | None = None
    """The function of which a decorator of the program's made this one."""

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def qualified_name(self) -> str:
        """Its name, after that of its class, as reports show it."""
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
    """What it is by its bases: ``torch``, ``keras``, ``parallel``, ``process``, `STUB` ..."""
    above: tuple[Class, ...] = ()
    """The classes of the project that it inherits from, in the order that attributes are found."""

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
        """Whether it inherits from no class of a library."""
        return not any(True for _ in self.outside())

    def extends(self, name: str) -> bool:
        """Whether it is the class of a library that has this full name, or inherits from it."""
        return any(isinstance(base, External) and base.name == name for base in self.outside())

    def outside(self) -> Iterator[Atom]:
        """What it, and the classes of the project that it extends, extend outside the project."""
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
    """What gives its items only as it is iterated: a call of a generator function, with the
    arguments bound in `frame`, or a `Flow`."""

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
    """A name of a project module that nobody has asked for yet."""

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
    """Whether it is bound as methods are: ``functools.partialmethod``."""
    exact: bool = False
    """Whether it is known that these are all arguments that it gives."""


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
    """Positions of the arguments that differ from task to task (-1: the function itself)."""
    private_names: frozenset[str] = frozenset()
    library: str = "joblib"
    names: tuple[str, ...] = ()
    """The arguments as the source writes them, "" where it does not."""
    repeated: bool = True
    """Whether the expression makes several tasks: it stands in a loop, or maps."""
    unplaced: int | None = None
    """From which argument on it is not known which of them is where."""
    unplaced_name: str = ""
    """What the source calls any of those, where it does."""
    exact: bool = False
    """Whether it is known that these are the arguments, and all of them."""


class Flow:
    """What makes items of those of other iterables, one by one: a generator expression, ``map``.

    Attributes:
        sources: what it takes items from.
        each: takes all that is left, one item after the other, and calls back with what it makes.
        whole: the same at once; what all of it is.
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
    """One scope in being. The values themselves are in the interpreter's store.

    Attributes:
        ident: the key into the store.
        parent: the lexical scope around it.
        born: the worker that made it (0: the parent).
        lent: the generator expressions that read its variables when they are iterated.
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
    """A place in source: a node of a module, and the name of the function around it."""

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
        """Whether its line is one of those of `node`, which is of the same module."""
        first = getattr(node, "lineno", 1)
        return first <= self.line <= (getattr(node, "end_lineno", None) or first)


@record
class Tensor(Atom):
    """A tensor or array of `framework` (torch, tensorflow, cupy, numpy, dask).

    Attributes:
        grad: ``none``, ``leaf``, ``history``, ``parameter``, ``variable`` or ``unknown``.
        gpu: True where it is known to live on a GPU.
        born: the worker that made it (0: the parent).
        ident: what it was made from, for the question "is it the same object?".
        severed: the parallel calls and collectives whose result it depends on, with a graph that
            was lost, and the forwards that went past a wrapper.
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
    """The parallel calls that it is made from alone: a backward from it can reach no further."""
    place: Site | None = None
    """Where it came onto the GPU."""
    small: bool = False
    """Whether it is known to be too small for several compute threads."""
    cpu: Conditions = NONE
    """What has to hold for it to be on the CPU, where it is not known to be on a GPU."""
    memory: Key = None
    """The array whose memory it has, where that is known."""
    extent: tuple[int, ...] = ()
    """The shape of an array, and the bytes of an element; empty where they are not known."""
    strided: bool = False
    """Whether its elements may lie apart in that memory: another shape of it may be a copy."""
    whole: int = 0
    """In a thread, the identity of what has all of its memory, or a part that is always the same,
    where it is a view of that."""
    certain: bool = False
    """Whether it is one tensor whichever way the program takes: otherwise it may be several, or
    something else."""
    behind: frozenset[Key] = frozenset()
    """The unknown things that it is computed from, where nothing else that it is computed from may
    have a graph; None among them: something else may."""
    large: bool = False
    """Whether it is known to have so many elements that several threads compute on them."""

    @property
    def tracked(self) -> bool:
        """Whether operations on it make a graph."""
        return self.grad in ("leaf", "history", "parameter")


@record
class Thing(Atom):
    """An object of a library class that rules know: a model, optimizer, tape, pool ...

    `kind` says which; `name` is the class's name; `parts` are the values it was made from.
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
    """One alternative and the assumptions that it was made under."""

    atom: Atom
    when: Conditions = NONE


if TYPE_CHECKING:
    A = TypeVar("A", bound=Atom)


@record
class Value(Record):
    """What an expression may be."""

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
        """The atom, where there is just one alternative."""
        first = self.choices[0].atom
        for choice in self.choices[1:]:
            if choice.atom != first:
                return None
        return first

    @property
    def constant(self) -> Hashable:
        """The constant, where it is the only alternative (None otherwise)."""
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
        """Whether this is None and nothing else."""
        return all(
            isinstance(choice.atom, Const) and choice.atom.value is None for choice in self.choices
        )

    def map(self, change: Callable[[Atom], Value]) -> Value:
        """`change` applied to every alternative, each keeping its assumptions."""
        choices = self.choices
        if len(choices) == 1:
            return guarded(change(choices[0].atom), choices[0].when)
        return join([guarded(change(choice.atom), choice.when) for choice in choices])


def guarded(value: Value, when: Conditions) -> Value:
    """`value` under further assumptions."""
    if not when:
        return value
    choices = [Choice(it.atom, it.when | when if it.when else when) for it in value.choices]
    return Value(tuple(choices))


def either(ways: Sequence[tuple[Value, Conditions]]) -> Value:
    """What there is after one of these `ways`: where it is the same after all, it does not matter
    which was taken."""
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
    """The constant, which is the same object each time: most are made again and again."""
    return of(Const(value, type(value).__name__))


def is_number(atom: Atom) -> bool:
    """Whether `atom` is certainly a plain number that is not known."""
    if isinstance(atom, Unknown):
        return isinstance(atom.key, tuple) and atom.key[0] in NUMERIC
    return isinstance(atom, Thing) and atom.kind == "number"


NUMERIC = ("int", "number", "world-size")
"""How the keys of numbers that are not known begin."""

RANK = ("int", "rank")
"""The key of the number of a process."""

NUMBER = of(Thing("number", "number"))
"""A plain number."""

COUNT = of(Thing("number", "count"))
"""How many there are of something."""

NUMBERS = of(Thing("number", "numbers"))
"""A list of them."""

OUTPUT = -2
"""The ident of a tensor that is the output of a model."""

GRADIENT = -404
"""The ident of a tensor that is a gradient itself."""

GRADIENTS = -405
"""The ident of a tensor that is several gradients, joined."""

FIGURE = -3
"""The source of a tensor that is one number computed from gradients, such as their norm."""

ANYTHING = -5
"""The source of a tensor that is computed from something of which nothing is known."""

COPIED = -6
"""The source of a tensor that has the values of its other sources, each or some of them."""

MARKS = frozenset({OUTPUT, GRADIENT, FIGURE})
"""The sources that stay where a tensor is taken out of its graph."""

METHOD = "method"
"""The part of a thing in a class which says that it is bound as functions are."""

UNKNOWN = of(Unknown())
NOTHING = constant(None)


def unknown(key: Key) -> Value:
    return of(Unknown(key))


ONE = "one"
"""The key of something of which nothing is known but that it stays what it is begins so."""


def join(values: Iterable[Value]) -> Value:
    """All alternatives of all `values`, without repetition.

    With more than `WIDTH` of them the constants become one unknown, and with more than that the
    whole is unknown: what is dropped never makes the rest certain.
    """
    parts = tuple(values)
    if len(parts) == 1 and len(parts[0].choices) == 1:
        return parts[0]
    return joined([choice for value in parts for choice in value.choices])


def joined(choices: Sequence[Choice]) -> Value:
    """The same of alternatives."""
    if len(choices) == 1:
        return Value((choices[0],))
    unknown = [it.atom for it in choices if type(it.atom) is Unknown]
    if len(unknown) > 1:
        choices = _without_identities(choices, unknown)
    if 1 < len(choices) <= WIDTH and len({choice.atom for choice in choices}) == len(choices):
        return Value(tuple(choices))  # most often, no alternative is repeated
    seen: dict[Atom, list[Choice]] = {}
    for choice in choices:
        known = seen.get(choice.atom)
        if known is None:
            seen[choice.atom] = [choice]
            continue
        # Each way to come by it is kept, unless a weaker condition covers it.
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
    """`choices` in which what has one key, or none, is one thing, of no identity unless all of it
    has the same; `unknown` are those among them."""
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
