"""A file's footprint: what it defines, imports and mentions, from one walk of its tree.

Mentions are a set of words. A name is itself; attribute accesses, calls, keyword arguments and
container writes have forms of their own (`asked`, `called`, `keyword`, `filling`), which no
variable name can have.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Set
from functools import cached_property

from pytest_gradguard.records import field, fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef

Imported = tuple[str, str, str]
"""A module (relative ones with dots), a name in it ("" for the module itself, "*" for all), and the
local name."""

Way = tuple[str, frozenset[str]]
"""A method, and what it leads to."""

Key = tuple[int, int]
"""A function, by the line and column of its definition."""

OWN_CODE: Key = (0, 0)
"""The key of module-level code."""

ITSELF = ""
"""The key of a name itself, beside the methods of its value."""

Place = tuple[int, str]
"""A variable, by the line of its outermost enclosing function (0: none) and its name; or an
attribute, by `ATTRIBUTE` and its `asked` name ("" for subscripts)."""

ATTRIBUTE = -1
"""The owner of attributes in a `Place`."""


def key_of(node: Definition) -> Key:
    """The key of the function defined at `node`."""
    return node.lineno, node.col_offset


@fields
class Binding:
    """Names that a statement binds.

    Attributes:
        names: variables, functions and classes.
        attributes: attributes and methods, as `asked`.
        said: the words that the value mentions.
        scope: the line of the outermost enclosing function; 0 if there is none.
        held: whether it is a value, not a function, class or method.
    """

    names: set[str]
    attributes: set[str]
    said: set[str]
    scope: int
    held: bool = True


@fields
class Footprint:
    """Definitions, imports and mentions of a file, with cached answers."""

    loaded: set[str] = field(default_factory=set)
    """Names and attributes that are read."""
    imports: list[Imported] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    """Bindings by assignments, ``with`` blocks and definitions."""
    read_from: dict[str, set[str]] = field(default_factory=dict)
    """Attributes read from a variable's value, and from these in turn."""
    own: set[str] = field(default_factory=set)
    """Mentions of module-level code outside imports."""
    definitions: dict[Key, tuple[str, set[str]]] = field(default_factory=dict)
    """Each function's name and mentions; and `own`, by `OWN_CODE`."""
    methods: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Methods of each class that aren't run by a call or construction, with their mentions."""
    bodies: dict[str, set[str]] = field(default_factory=dict)
    """Mentions in the body of each class, outside its methods."""
    decorators: dict[str, set[tuple[str, bool]]] = field(default_factory=dict)
    """The decorators of each function and class; and whether by a method of that name."""
    filled: dict[str, set[str]] = field(default_factory=dict)
    """Mentions where module-level code changes a variable's value; by "" for other statements,
    which run on import."""
    shared: set[str] = field(default_factory=set)
    """Variables that functions declare global."""
    inheriting: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """Mentions of each method, and the bases of its class."""
    written: set[Place] = field(default_factory=set)
    """Places written to as a whole: by ``+=``, ``[:] =``, ``.data =`` or a method that may work in
    place."""
    given: set[Place] = field(default_factory=set)
    """Places bound otherwise than by assignment."""
    answers: dict[Any, Any] = field(default_factory=dict)
    called_by_calls: frozenset[str] = frozenset()
    """Methods that calling or starting an object runs."""
    strings: frozenset[str] = frozenset()
    """String literals, in quotes."""

    @cached_property
    def mentioned(self) -> set[str]:
        """All words mentioned outside module-level imports; attributes and calls also as plain
        names."""
        said = self.loaded.union(*(said for _, said in self.definitions.values()))
        return said | {it.removeprefix(".") for it in said}

    @cached_property
    def defined(self) -> set[str]:
        """Functions and classes of the module."""
        return {name for it in self.bindings if not it.held and not it.scope for name in it.names}

    def imported_as(self, name: str) -> list[tuple[str, str]]:
        """The modules, and names in them, that are imported as `name`."""
        return [(module, there) for module, there, _ in self._by_name.get(name, ())]

    def imports_of(self, among: Set[str]) -> list[Imported]:
        """The imports that may bind one of these names."""
        given = (its for name, its in self._by_name.items() if name == "*" or name in among)
        return [it for its in given for it in its]

    @cached_property
    def _by_name(self) -> dict[str, list[Imported]]:
        """The imports by their local name."""
        found: dict[str, list[Imported]] = {}
        for it in self.imports:
            found.setdefault(it[2], []).append(it)
        return found

    @cached_property
    def variables(self) -> set[str]:
        """Variables of the module and its classes."""
        return {name for it in self.bindings if it.held and not it.scope for name in it.names}

    @cached_property
    def named(self) -> set[str]:
        """Mentions, and names of functions, classes and methods."""
        methods = {asked(name) for of_class in self.methods.values() for name in of_class}
        return self.mentioned | self.defined | methods

    @cached_property
    def has_star(self) -> bool:
        """Whether there are star imports."""
        return any(name == "*" for _, name, _ in self.imports)

    @cached_property
    def fillers(self) -> dict[str, set[str]]:
        """Functions that write into containers of the module, with these."""
        filling_in = {filling(name): name for name in self.variables}
        found: dict[str, set[str]] = {}
        for it in self.bindings:
            filled = {filling_in[word] for word in it.said & filling_in.keys()}
            if filled and not it.held and not it.scope:
                for name in it.names:
                    found.setdefault(name, set()).update(filled)
        return found

    @cached_property
    def _giving(self) -> dict[str, list[Binding]]:
        """Bindings of each name of the module, or of a method."""
        found: dict[str, list[Binding]] = {}
        filled = [Binding({name}, set(), said, 0) for name, said in self.filled.items()]
        filled += [Binding({it}, set(), said, 0, held=False) for it, said in self.bodies.items()]
        for name, decorators in self.decorators.items():
            containers = set().union(*(self.fillers.get(it, ()) for it, _ in decorators))
            filled.append(Binding(containers, set(), {name}, 0, held=False))
        for it in (*self.bindings, *filled):
            for word in (*(() if it.scope else it.names), *(() if it.held else it.attributes)):
                found.setdefault(word, []).append(it)
        return found

    def leads_to(self, name: str, method: str = "", *, tables: bool = True) -> frozenset[str]:
        """`name`, and all words mentioned transitively behind it in functions, classes, methods
        and, with `tables`, variables of the module; or behind a `method` of the class `name`."""
        key = (name, method, tables)
        if key not in self.answers:
            giving = self._giving
            found = {asked(method) if method else name}
            waiting = [it.said for it in giving.get(name, ())]
            if method:
                waiting = [self.methods[name][method]]
            while waiting:
                new = waiting.pop() - found
                found |= new
                waiting += (
                    it.said
                    for word in new & giving.keys()
                    for it in giving[word]
                    if tables or not it.held
                )
            self.answers[key] = frozenset(found)
        known: frozenset[str] = self.answers[key]
        return known

    def ways_from(self, name: str, *, tables: bool) -> tuple[list[Way], frozenset[str]]:
        """The methods of classes that `name` leads to, transitively; and all words mentioned behind
        them."""
        key = ("ways", name, tables)
        if key not in self.answers:
            lead = self.leads_to(name, tables=tables)
            found: list[Way] = []
            seen: set[str] = set()
            waiting = [lead]
            while waiting:
                for it in (waiting.pop() & self._classes) - seen:
                    seen.add(it)
                    ways = [
                        (way, self.leads_to(it, way, tables=tables)) for way in self.methods[it]
                    ]
                    found += ways
                    waiting += {way for _, way in ways}
            self.answers[key] = found, lead.union(*{way for _, way in found})
        known: tuple[list[Way], frozenset[str]] = self.answers[key]
        return known

    @cached_property
    def _classes(self) -> frozenset[str]:
        return frozenset(self.methods)

    def reached(self, words: Set[str]) -> tuple[set[str], dict[int, set[str]]]:
        """`words`, and names that mention them transitively; and local variables of this kind, by
        function."""
        found = set(words)
        variables: dict[int, set[str]] = {}
        waiting = self.bindings
        changed = True
        while changed:
            changed = False
            left = []
            for binding in waiting:
                own = variables.get(binding.scope)
                if found.isdisjoint(binding.said) and (own is None or own.isdisjoint(binding.said)):
                    left.append(binding)
                    continue
                changed = True
                found |= binding.attributes
                if binding.scope:
                    variables.setdefault(binding.scope, set()).update(binding.names)
                    found |= binding.names & self.shared
                else:
                    found |= binding.names
            waiting = left
        return found, variables

    def mentioning(self, words: Set[str]) -> set[Key]:
        """Functions that mention one of `words` transitively."""
        found, _ = self.reached(words)
        return {key for key, (_, said) in self.definitions.items() if not found.isdisjoint(said)}


def called(name: str) -> str:
    """The word for a call of a function or method."""
    return f"{name}()"


def writing(place: Place) -> str:
    """The word for a write to `place`; no name is like it."""
    return f"{place[0]} {place[1]} ="


def asked(name: str) -> str:
    """The word for an access to the attribute `name`."""
    return f".{name}"


def keyword(name: str) -> str:
    """The word for a keyword argument."""
    return f"{name}="


def inherited(name: str) -> str:
    """The word for a subclass of `name`."""
    return f"({name})"


def filling(name: str) -> str:
    """The word for a write into the container `name`."""
    return f"{name}[]="


def quoted(string: str) -> str:
    """The word for a string literal."""
    return f'"{string}"'


def renamed(seen: Footprint, words: Collection[str]) -> set[str]:
    """`words`, and their aliases in the module's imports."""
    return {*words} | {
        here
        for module, name, here in seen.imports
        if (name or here != module.partition(".")[0])
        and (name or module).rpartition(".")[2] in words
    }
