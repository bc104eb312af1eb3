"""Interfaces that the engine needs: the project and the models of libraries."""

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
    """What a function may do: start workers, or other workers than threads; create loaders with
    workers, which others iterate; cache results in files; train or call models; compute gradients;
    take part in distributed training; mention what may be a pitfall in workers; change what threads
    share, or a mode that they don't inherit."""

    M = TypeVar("M", contravariant=True)
    """The machine, which projects and models know nothing of."""
else:
    M = None

    class Protocol:
        def __class_getitem__(cls, _):
            return cls


class Project(Protocol):
    """The machine's interface to the project."""

    def load(self, name: str) -> Module | None:
        """The project module of that dotted name."""

    def is_module(self, name: str) -> bool:
        """Whether the project has it, possibly as a package without ``__init__``."""

    def is_inner(self, package: str, name: str) -> bool:
        """Whether the package's attribute `name` is its submodule."""

    def setting_up(self, name: str) -> frozenset[str]:
        """Which of the module and its imports have effects when imported: starting a GPU driver,
        setting visible GPUs, start methods, compute threads or modes."""

    def registers(self, name: str) -> bool:
        """Whether importing it adds definitions to a container of another module."""

    def brings_registered(self, name: str) -> bool:
        """As `registers`, also for modules that it imports."""

    def origin(self, name: str) -> str | None:
        """The full name of the definition that `name` refers to; None if there is none."""

    def reaches(self, what: What, name: str, wanted: str | None = None) -> frozenset[str]:
        """Whether the module of that name (or its attribute `wanted`) does this, directly or
        through calls: "" for itself, or methods of its objects."""

    def may_join_a_group(self) -> bool:
        """Whether the program may join a process group for training."""

    def packages_of(self, name: str) -> set[str]:
        """The external packages that the module imports, directly or through project modules."""


def _own_value(value: Value) -> Value:
    """A new value equal to `value`."""
    return Value(value.choices)


SETTER = "<setter>"
"""Suffix of a property's name for its setter."""


@fields
class Args:
    """The evaluated arguments of a call."""

    positional: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)
    rest: Value | None = None
    """Further positional arguments (from ``*args``), joined."""
    open: bool = False
    """Whether ``**kwargs`` may contain further keywords."""
    written: bool = False
    """Whether these are certainly all arguments."""
    perhaps: dict[str, Value] = field(default_factory=dict)
    """Keywords that are passed on some paths only, `ABSENT` on the others."""

    def pairs(self) -> tuple[tuple[str, Value], ...]:
        """The keywords with their values, also optional ones."""
        return (*self.keywords.items(), *self.perhaps.items())

    @classmethod
    def given(
        cls, positional: list[Value], pairs: Iterable[tuple[str, Value]], *, exact: bool = False
    ) -> Args:
        """Arguments from such pairs; `exact` if there are no others."""
        args = cls(positional)
        for name, value in pairs:
            (args.perhaps if ABSENT.only in value.atoms else args.keywords)[name] = value
        args.written = exact and not args.perhaps
        return args

    def get(self, position: int | None, *names: str | None) -> Value | None:
        """The argument at `position`, or with one of these `names`; unknown if ``**kwargs`` may
        have it."""
        for name in names:
            if name is not None and name in self.keywords:
                return self.keywords[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        if self.rest is not None and position is not None:
            return self.rest
        return UNKNOWN if any(name and self.may_pass(name) for name in names) else None

    def constant(self, position: int | None, *names: str | None) -> Hashable:
        """The constant of an argument; None if it isn't one."""
        value = self.get(position, *names)
        return None if value is None else value.constant

    def after(self, position: int, names: Container[str] = ()) -> Args:
        """The arguments from `position` on, without these keyword `names`."""
        keywords = {name: value for name, value in self.keywords.items() if name not in names}
        perhaps = {name: value for name, value in self.perhaps.items() if name not in names}
        rest = self.positional[position:]
        return Args(rest, keywords, self.rest, self.open, self.written, perhaps)

    def distinct(self) -> Args:
        """These arguments, with identities of their own."""
        keywords = {name: _own_value(value) for name, value in self.keywords.items()}
        positional = [_own_value(value) for value in self.positional]
        return replace(self, positional=positional, keywords=keywords)

    def may_pass(self, name: str) -> bool:
        """Whether `name`, which is none of `keywords`, may be passed."""
        return self.open or name in self.perhaps

    def named(self, names: Iterable[str]) -> Table:
        """The dict of the keywords with these `names`, and of optional or unknown ones."""
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
    """The engine's interface to the models of libraries."""

    def attribute(self, m: M, frame: Frame, node: ast.AST, atom: Atom, name: str) -> Value:
        """``atom.name`` of a tensor or of a library object."""

    def call(self, m: M, frame: Frame, node: ast.AST, name: str, args: Args) -> Value:
        """A call of a library's function or class."""

    def call_instance(
        self, m: M, frame: Frame, node: ast.AST, instance: Instance, args: Args
    ) -> Value:
        """``instance(...)`` if the project has no ``__call__`` for it."""

    def call_method(self, m: M, frame: Frame, node: ast.AST, method: Method, args: Args) -> Value:
        """A call of a method of a library object, a tensor or a plain container."""

    def call_thing(self, m: M, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Value:
        """``thing(...)``."""

    def call_unknown(
        self, m: M, frame: Frame, node: ast.AST, atom: Unknown, args: Args
    ) -> Value | None:
        """A call of an unknown function, which may be recognised by its name."""

    def ran(self, m: M, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args) -> None:
        """A method of the project ran on `receiver`, whose class extends a library class."""

    def changed_receiver(
        self, m: M, frame: Frame, node: ast.AST, receiver: Atom, name: str, args: Args
    ) -> Value | None:
        """The receiver after an in-place method; None if it is unchanged."""

    def class_of(self, bases: tuple[Atom, ...]) -> str:
        """The kind of a project class by its bases; "" for none."""

    def class_by_use(self, m: M, node: ast.ClassDef) -> str:
        """The kind of a project class by the use of its objects; "" if it is unknown."""

    def decorate(
        self, m: M, frame: Frame, decorator: ast.expr, value: Value, function: Function
    ) -> Value:
        """The value of a function or method under `decorator`."""

    def decorate_class(self, m: M, frame: Frame, decorator: ast.expr, value: Value) -> Value:
        """The value of a class under `decorator`."""

    def derived(self, m: M, tensor: Tensor) -> Tensor:
        """A view or part of `tensor`."""

    def indexed(self, m: M, frame: Frame, node: ast.AST, tensor: Tensor) -> Tensor:
        """``tensor[...]``, as `derived`."""

    def enter_context(self, m: M, frame: Frame, node: ast.expr, value: Value) -> Value:
        """Enter a ``with`` item: change the modes; the value of ``as``."""

    def exit_context(
        self, m: M, frame: Frame, node: ast.AST, value: Value, raised: str | None
    ) -> None:
        """Exit a ``with`` block; the caller restores the modes.

        `raised` is its exception: None for none, "" if it is unknown.
        """

    def put_back(self, m: M, value: Value) -> None:
        """Restore the modes from before the context `value` was created, if creating it changed
        them."""

    def lacks(self, m: M, value: Value, name: Value) -> bool:
        """Whether `value`, a library object, certainly has no attribute `name`."""

    def awaited(self, m: M, atom: Atom) -> Value:
        """``await atom``."""

    def is_field(self, stated: Value) -> bool:
        """Whether the class attribute `stated` declares a field."""

    def field_given_as(self, name: str, stated: Value | None) -> tuple[tuple[str, ...], bool]:
        """The keywords for the field `name`, declared by `stated`, and whether it is positional,
        too."""

    def field_value(
        self,
        m: M,
        frame: Frame,
        node: ast.AST,
        name: str,
        stated: Value | None,
        given: Value | None,
    ) -> Value | None:
        """The value of the field `name`, declared by `stated`, with the argument `given`."""

    def computes(self, name: str) -> bool:
        """Whether the tensor method or attribute `name` is computed from the tensor and arguments
        alone."""

    def proved(self, m: M, subject: Key, kind: Kind, born: int) -> Atom:
        """The atom for an unknown object proved to be of `kind`; `born`: its worker."""

    def computed(
        self, m: M, frame: Frame, node: ast.AST, subject: Key, function: Value, args: Args
    ) -> Value | None:
        """The result of `function` if evidence about `subject`, the key of the result, and `args`
        together say more than alone."""

    def swallows(self, m: M, value: Value) -> bool:
        """Whether ``with value`` may suppress exceptions."""

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
        """A method that nothing here calls returns `value` to its library."""

    def global_written(self, m: M, frame: Frame, node: ast.AST, name: str, holder: Frame) -> None:
        """A function assigns a module's global."""

    def imported(self, m: M, frame: Frame, node: ast.AST, name: str) -> None:
        """A library, a name of one, or a project module is imported."""

    def imported_star(self, m: M, frame: Frame, module: str) -> None:
        """``from library import *``."""

    def grad_after_pickling(self, tensor: Tensor) -> str:
        """The `grad` of `tensor` after pickling."""

    def read_attribute(self, m: M, value: Value) -> Value:
        """`value` as an attribute that is read and not called."""

    def refuses_pickling(self, atom: Atom, *, standard: bool) -> bool:
        """Whether `atom` itself certainly can't be pickled, by the `standard` pickler or any."""

    def in_place(self, m: M, frame: Frame, node: ast.AugAssign, old: Value) -> Value | None:
        """``x += ...``; the new `x`, if it isn't the result of the operation."""

    def next_item(self, m: M, element: Value) -> None:
        """A loop proceeds to an item, represented by `element`."""

    def described(self, m: M, frame: Frame, name: str) -> Value | None:
        """The configured meaning of a project definition."""

    def described_in(self, m: M, module: str) -> list[tuple[str, Value]]:
        """The configured meanings of names in a module, wherever they are defined."""

    def external(self, m: M, name: str) -> Value:
        """The value of a library's full name."""

    def name_from_star(self, name: str) -> Value:
        """The possible value of a name from an unknown star import."""

    def inherited_attribute(
        self, m: M, frame: Frame, node: ast.AST, atom: Instance, name: str
    ) -> Value:
        """An attribute defined by neither the object nor its project classes."""

    def instantiated(
        self, m: M, frame: Frame, node: ast.AST, instance: Instance, args: Args
    ) -> None:
        """A project object was created: what its library bases keep of the arguments."""

    def annotated(self, name: str, kind: Value) -> Kind | None:
        """The kind of a parameter, as far as its name and annotation show it."""

    def runs_nested(self, outer: ParallelCall, library: str) -> bool:
        """Whether a call of `library` runs sequentially in threads of `outer`."""

    def sends_on(self, m: M, library: str) -> bool:
        """Whether this worker process pickles what it passes on by `library`."""

    def of_kind(self, m: M, kind: Value) -> Value | None:
        """The value that an annotation's `kind` implies; None if it implies nothing."""

    def item(self, m: M, frame: Frame, node: ast.AST, atom: Atom, index: Value) -> Value:
        """``thing[index]`` of a library object."""

    def keeps(self, atom: External) -> bool:
        """Whether a call of `atom` is lazy: only its result iterates the arguments."""

    def parts_of(self, m: M, atom: Atom) -> Value | None:
        """The items of a library object or a part of it, when iterated; None if unknown."""

    def iterated(self, m: M, frame: Frame, node: ast.AST, value: Value) -> Value:
        """`value` as it is iterated, with effects recorded."""

    def mapping(self, m: M, frame: Frame, node: ast.AST, value: Value) -> Value:
        """`value` as a dict for ``**value``."""

    def make_task(self, m: M, frame: Frame, node: ast.AST, delayed: Delayed, args: Args) -> Value:
        """``delayed(f)(x)``: the call for a worker."""

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
        """The result of an operator; None if no operand is a tensor."""

    def returned(
        self,
        m: M,
        atom: Thing | Instance,
        call: ParallelCall,
        received: Callable[[Value], Value],
        seen: set[int],
    ) -> Atom:
        """`atom` as returned from a process worker, with its parts `received`; `seen` are copies
        already recorded."""

    def set_attribute(
        self, m: M, frame: Frame, target: ast.Attribute, atom: Atom, value: Value
    ) -> Value | None:
        """``atom.name = value``; the new `atom`, if it changed."""

    def shown_by_attribute(self, m: M, name: str, atom: Unknown) -> Value | None:
        """The attribute of an unknown `atom`, if its name identifies it."""

    def shown_by_method(self, m: M, node: ast.AST, name: str, args: Args) -> Value | None:
        """An unknown object after a method that changes it, if its name identifies it."""

    def delete_item(
        self, m: M, frame: Frame, target: ast.Subscript, holder: Value, index: Value
    ) -> None:
        """Record ``del holder[index]`` of objects unknown to the engine."""

    def set_item(
        self,
        m: M,
        frame: Frame,
        target: ast.Subscript,
        holder: Value,
        index: Value,
        value: Value,
    ) -> Value | None:
        """``holder[index] = value``; the new holder, if it is no container."""
