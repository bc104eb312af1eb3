"""What the engine asks of the project and of the models of libraries, and the words it asks in."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Hashable, Iterable, Iterator

from gradguard_lint.domain.shapes import ABSENT
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Delayed,
    External,
    Frame,
    Function,
    Instance,
    Method,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    join,
)
from pytest_gradguard.records import field, fields, replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Literal, Protocol, TypeVar

    from gradguard_lint.domain.effects import ParallelCall
    from gradguard_lint.domain.evidence import Kind
    from gradguard_lint.domain.questions import Key
    from gradguard_lint.reading.source import Module

    What = Literal[
        "starts",
        "starts-processes",
        "loads",
        "remembers",
        "fits",
        "trains",
        "trains-together",
        "matters",
        "changes",
    ]
    """What a function may do: start workers, or some that are no threads; make loaders with
    workers, which others iterate; keep results in files; train or ask models; take gradients; call
    what processes do that train together; mention what workers may have a pitfall with; change what
    threads share, or a mode that they do not have."""

    M = TypeVar("M", contravariant=True)
    """The machine, which these know nothing of."""
else:
    M = None

    class Protocol:
        def __class_getitem__(cls, _):
            return cls


class Project(Protocol):
    """What the machine asks the project for."""

    def load(self, name: str) -> Module | None:
        """The project's module of that dotted name."""

    def is_module(self, name: str) -> bool:
        """Whether the project has it (it may be a package without ``__init__``)."""

    def is_inner(self, package: str, name: str) -> bool:
        """Whether what the package gives as `name` is its module of that name."""

    def setting_up(self, name: str) -> frozenset[str]:
        """Which of it, and what it imports, may start the driver of a GPU as they are imported, or
        say which GPUs are seen, how processes start, in how many threads they compute, or what is
        in force from there on."""

    def registers(self, name: str) -> bool:
        """Whether importing it puts what it defines into a container of another module."""

    def brings_registered(self, name: str) -> bool:
        """The same, or whether importing one of the modules that it imports does."""

    def origin(self, name: str) -> str | None:
        """The full name under which the project defines the function or class that others know by
        the full name `name`; None where it does not."""

    def reaches(self, what: What, name: str, wanted: str | None = None) -> frozenset[str]:
        """What of the project's module of that name (or of what it gives as `wanted`) does this, or
        leads to what does: "" for itself, or methods of the objects that it gives."""

    def may_join_a_group(self) -> bool:
        """Whether the program may join processes that train together."""

    def packages_of(self, name: str) -> set[str]:
        """The packages from outside the project that its module of that name imports, or one of
        those of the project that this imports."""


def _own_value(value: Value) -> Value:
    """A value that equals `value`, and is no other object's."""
    return Value(value.choices)


SETTER = "<setter>"
"""What is added to the name of a property for the function that sets it."""


@fields
class Args:
    """The arguments of a call, evaluated."""

    positional: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)
    rest: Value | None = None
    """What more positional arguments there may be (from ``*args``)."""
    open: bool = False
    """Whether ``**kwargs`` may hold more keywords."""
    written: bool = False
    """Whether these are all that are given: the call itself says each of them, or another does."""
    perhaps: dict[str, Value] = field(default_factory=dict)
    """The further keywords that are given on some ways only, `ABSENT` on the others."""

    def pairs(self) -> tuple[tuple[str, Value], ...]:
        """All that is given by its name, on some ways at least."""
        return (*self.keywords.items(), *self.perhaps.items())

    @classmethod
    def given(
        cls, positional: list[Value], pairs: Iterable[tuple[str, Value]], *, exact: bool = False
    ) -> Args:
        """The arguments that such pairs give, `exact` where there are no others."""
        args = cls(positional)
        for name, value in pairs:
            (args.perhaps if ABSENT.only in value.atoms else args.keywords)[name] = value
        args.written = exact and not args.perhaps
        return args

    def get(self, position: int | None, *names: str | None) -> Value | None:
        """The argument at `position`, or called by one of these `names`: not known where
        ``**kwargs`` may give it."""
        for name in names:
            if name is not None and name in self.keywords:
                return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        if self.rest is not None and position is not None:
            return self.rest
        return UNKNOWN if any(name and self.may_give(name) for name in names) else None

    def constant(self, position: int | None, *names: str | None) -> Hashable:
        """The constant that `get` gives; None where that is none."""
        value = self.get(position, *names)
        return None if value is None else value.constant

    def after(self, position: int, names: Container[str] = ()) -> Args:
        """The arguments from `position` on that have none of these `names`."""
        keywords = {name: value for name, value in self.keywords.items() if name not in names}
        perhaps = {name: value for name, value in self.perhaps.items() if name not in names}
        rest = self.positional[position:]
        return Args(rest, keywords, self.rest, self.open, self.written, perhaps)

    def told_apart(self) -> Args:
        """The same arguments, of which each has a value of its own."""
        keywords = {name: _own_value(value) for name, value in self.keywords.items()}
        positional = [_own_value(value) for value in self.positional]
        return replace(self, positional=positional, keywords=keywords)

    def may_give(self, name: str) -> bool:
        """Whether `name`, which is none of the keywords, may be given all the same."""
        return self.open or name in self.perhaps

    def named(self, names: Iterable[str]) -> Table:
        """The dict of those keywords that are called by one of these `names`, and all others that
        there may be."""
        keys = UNKNOWN if self.open else join(map(constant, self.perhaps)) if self.perhaps else None
        entries = tuple((name, self.keywords[name]) for name in names)
        perhaps = tuple(self.perhaps.items())
        return Table(entries, ABSENT if keys is None else UNKNOWN, keys, perhaps=perhaps)

    def values(self) -> Iterator[Value]:
        yield from self.positional
        if self.rest is not None:
            yield self.rest
        yield from self.keywords.values()


class Models(Protocol[M]):
    """What the engine asks the models of libraries for."""

    def attribute(self, m: M, frame: Frame, node: ast.AST, atom: Atom, name: str) -> Value:
        """``atom.name`` of a tensor or of a library object."""

    def call(self, m: M, frame: Frame, node: ast.AST, name: str, args: Args) -> Value:
        """A call of a library's function or class."""

    def call_instance(
        self, m: M, frame: Frame, node: ast.AST, instance: Instance, args: Args
    ) -> Value:
        """``instance(...)`` where no ``__call__`` is in the project."""

    def call_method(self, m: M, frame: Frame, node: ast.AST, method: Method, args: Args) -> Value:
        """A call of a method of a library object, a tensor or a plain container."""

    def call_thing(self, m: M, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Value:
        """``thing(...)``."""

    def call_unknown(
        self, m: M, frame: Frame, node: ast.AST, atom: Unknown, args: Args
    ) -> Value | None:
        """A call of something that is not known, but may say by its name what it does."""

    def ran(self, m: M, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args) -> None:
        """A method of the project ran for `receiver`, whose class extends one of a library."""

    def changed_receiver(
        self, m: M, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args
    ) -> Value | None:
        """What the receiver is after an in-place method; None where it stays as it was."""

    def class_of(self, bases: tuple[Atom, ...]) -> str:
        """What a project's class is by its bases, as rules know it; "" where it is nothing."""

    def class_by_use(self, m: M, node: ast.ClassDef) -> str:
        """What a project's class is by what is done with its objects; "" where that is unknown."""

    def decorate(
        self, m: M, frame: Frame, decorator: ast.expr, value: Value, function: Function
    ) -> Value:
        """The value of a function or method under `decorator`."""

    def decorate_class(self, m: M, frame: Frame, decorator: ast.expr, value: Value) -> Value:
        """The value of a class under `decorator`."""

    def derived(self, m: M, tensor: Tensor) -> Tensor:
        """A view or part of `tensor`."""

    def indexed(self, m: M, frame: Frame, node: ast.AST, tensor: Tensor) -> Tensor:
        """What indexing `tensor` gives: `derived`."""

    def enter_context(self, m: M, frame: Frame, node: ast.expr, value: Value) -> Value:
        """Enter a ``with`` item: change the modes; what ``as`` gives."""

    def exit_context(
        self, m: M, frame: Frame, node: ast.AST, value: Value, raised: str | None
    ) -> None:
        """Leave a ``with`` block; the modes are put back by the caller.

        `raised` is what is raised in it: None where nothing is, "" where that is not known.
        """

    def put_back(self, m: M, value: Value) -> None:
        """Put back what was in force before the context `value` was made, if making it has changed
        that: what held around its block is in force again."""

    def lacks(self, m: M, value: Value, name: Value) -> bool:
        """Whether `value`, something of a library, certainly has no attribute called `name`."""

    def awaited(self, m: M, atom: Atom) -> Value:
        """``await atom``."""

    def is_field(self, stated: Value) -> bool:
        """Whether a class that says `stated` of a name makes a field of it."""

    def field_given_as(self, name: str, stated: Value | None) -> tuple[tuple[str, ...], bool]:
        """By which keywords the field `name` is given, of which the class says `stated`, and
        whether by its place, too."""

    def field_value(
        self,
        m: M,
        frame: Frame,
        node: ast.AST,
        name: str,
        stated: Value | None,
        given: Value | None,
    ) -> Value | None:
        """What the field `name` of an object is, of which the class says `stated`, and which the
        object is `given`."""

    def computes(self, name: str) -> bool:
        """Whether the method or attribute `name` of tensors gives one that is computed from theirs
        and the arguments alone."""

    def proved(self, m: M, subject: Key, kind: Kind, born: int) -> Atom:
        """What stands for something unknown that is proved to be of that `kind`; `born`: the worker
        that made it."""

    def computed(
        self, m: M, frame: Frame, node: ast.AST, subject: Key, function: Value, args: Args
    ) -> Value | None:
        """What `function` gives for `args`, where what is proved of `subject`, which this is known
        as, says more with these than alone."""

    def swallows(self, m: M, value: Value) -> bool:
        """Whether an exception of its body ends where ``with value`` is left."""

    def external_attribute(
        self, m: M, frame: Frame, node: ast.AST, atom: External, name: str
    ) -> Value:
        """An attribute of a library module or class."""

    def given_back(
        self,
        m: M,
        frame: Frame,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        receiver: Instance,
        value: Value,
    ) -> None:
        """A method that nobody here calls returns `value`: a library may go on with it."""

    def global_written(self, m: M, frame: Frame, node: ast.AST, name: str, holder: Frame) -> None:
        """A function assigns a module's global."""

    def imported(self, m: M, frame: Frame, node: ast.AST, name: str) -> None:
        """A library, or a name of one, was imported, or a module of the project."""

    def imported_star(self, m: M, frame: Frame, module: str) -> None:
        """``from library import *``."""

    def grad_after_pickling(self, tensor: Tensor) -> str:
        """What `tensor` is for autograd once it was pickled."""

    def read_attribute(self, m: M, value: Value) -> Value:
        """`value`, an attribute that is read and not called, perhaps of what a library gives."""

    def refuses_pickling(self, atom: Atom, *, standard: bool) -> bool:
        """Whether `atom` itself certainly cannot be pickled, by the `standard` pickler or any."""

    def in_place(self, m: M, frame: Frame, node: ast.AugAssign, old: Value) -> Value | None:
        """``x += ...``; what `x` is then, where that is not what the operation gives."""

    def taken(self, m: M, element: Value) -> None:
        """A loop goes on to an item of a sequence of which `element` stands for all."""

    def described(self, m: M, frame: Frame, name: str) -> Value | None:
        """What the configuration says that a definition of the project is."""

    def described_in(self, m: M, module: str) -> list[tuple[str, Value]]:
        """The names of a module that others import, and what the configuration says they are,
        wherever the module has them from."""

    def external(self, m: M, name: str) -> Value:
        """What a library's name stands for, by its full name."""

    def name_from_star(self, name: str) -> Value:
        """What a name may be that only a star import of something unknown can give."""

    def inherited_attribute(
        self, m: M, frame: Frame, node: ast.AST, atom: Instance, name: str
    ) -> Value:
        """An attribute that neither the object nor its project classes define."""

    def instantiated(
        self, m: M, frame: Frame, node: ast.AST, instance: Instance, args: Args
    ) -> None:
        """A project object was made: what its library bases keep of the arguments."""

    def annotated(self, name: str, kind: Value) -> Kind | None:
        """What a parameter with this name and annotation is, as far as that shows."""

    def runs_nested(self, outer: ParallelCall, library: str) -> bool:
        """Whether a call of `library` hands out nothing in the threads of `outer`."""

    def sends_on(self, m: M, library: str) -> bool:
        """Whether the worker process that is here pickles what it gives to others by `library`."""

    def of_kind(self, m: M, kind: Value) -> Value | None:
        """What something is of which an annotation says no more than its `kind`; None where that
        tells nothing."""

    def item(self, m: M, frame: Frame, node: ast.AST, atom: Atom, index: Value) -> Value:
        """``thing[index]`` of a library object."""

    def keeps(self, atom: External) -> bool:
        """Whether a call of `atom` does not iterate what it is given: what it gives does."""

    def parts_of(self, m: M, atom: Atom) -> Value | None:
        """What iterating `atom` gives, an object of a library's class, or of one that extends such
        a class, or a part of it; None where that is not known."""

    def iterated(self, m: M, frame: Frame, node: ast.AST, value: Value) -> Value:
        """What is iterated where `value` is, of which the library takes note."""

    def mapping(self, m: M, frame: Frame, node: ast.AST, value: Value) -> Value:
        """`value`, with a dict in place of what else ``**value`` unpacks."""

    def make_task(self, m: M, frame: Frame, node: ast.AST, delayed: Delayed, args: Args) -> Value:
        """``delayed(f)(x)``: the call that a worker is to make."""

    def operation(
        self,
        m: M,
        frame: Frame,
        node: ast.AST,
        values: list[Value],
        *,
        smooth: bool = True,
        matmul: bool = False,
    ) -> Value | None:
        """What an operator makes of `values`; None where no tensor is among them."""

    def returned(
        self,
        m: M,
        atom: Thing | Instance,
        call: ParallelCall,
        received: Callable[[Value], Value],
        seen: set[int],
    ) -> Atom:
        """`atom` as it comes back from a process worker, and what it holds as it is `received`;
        `seen` are the copies of which that is noted already."""

    def set_attribute(
        self, m: M, frame: Frame, target: ast.Attribute, atom: Atom, value: Value
    ) -> Value | None:
        """``atom.name = value``; what `atom` is then, where it changed."""

    def shown_by_attribute(self, m: M, name: str, atom: Unknown) -> Value | None:
        """What an attribute of something unknown, `atom`, is where its name shows it."""

    def shown_by_method(self, m: M, node: ast.AST, name: str, args: Args) -> Value | None:
        """What something unknown is after a method that changes it, where its name shows it."""

    def delete_item(
        self, m: M, frame: Frame, target: ast.Subscript, holder: Value, index: Value
    ) -> None:
        """Record what ``del holder[index]`` does, where the engine does not know."""

    def set_item(
        self,
        m: M,
        frame: Frame,
        target: ast.Subscript,
        holder: Value,
        index: Value,
        value: Value,
    ) -> Value | None:
        """``holder[index] = value``; what the holder is then, where it is no container."""
