"""Atoms: what a value may be, one alternative each.

An atom is immutable and hashable; what can change (variables, attributes, what a list holds) lives
in the state, under the identity of what it belongs to.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.frames import Flow, Frame, Site
from gradguard_lint.domain.questions import Key
from pytest_gradguard.records import Record, fields, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.values import Value
    from gradguard_lint.reading.source import Module

STUB = "stub"
"""What a class is that extends one of a library's stub, which says all that it does."""


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
