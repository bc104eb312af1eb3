"""Scopes, places in source, and iterables that make items of those of others."""

from __future__ import annotations

import ast
from collections.abc import Callable

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.atoms import Class, Function, Generator
    from gradguard_lint.domain.values import Value
    from gradguard_lint.reading.source import Module


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
