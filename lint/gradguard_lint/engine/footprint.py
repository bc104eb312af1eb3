"""A file's footprint: what one walk of its tree says it defines, imports and mentions.

What is mentioned is a set of words. A name is itself, and has its own form where an object is asked
for an attribute, where something is called, given by keyword or filled (`asked`, `called`,
`keyword`, `filling`): no variable is like these.
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
"""A module (a relative one with its dots), a name in it ("" for the module itself, "*" for all),
and the name where it is imported."""

Way = tuple[str, frozenset[str]]
"""A method, and what it leads to."""

Key = tuple[int, int]
"""What stands for a function: the line and the column of its definition."""

OWN_CODE: Key = (0, 0)
"""What stands for the module's own code, among functions."""

ITSELF = ""
"""What stands for a name itself, beside the methods of what it gives."""

Place = tuple[int, str]
"""A variable, by the line of the outermost function around it (0: none) and its name; an attribute,
by `ATTRIBUTE` and its name as `asked`, which is "" for what has none."""

ATTRIBUTE = -1
"""What stands for the object of an attribute, where variables are known by functions."""


def key_of(node: Definition) -> Key:
    """What stands for the function that is defined at `node`."""
    return node.lineno, node.col_offset


@fields
class Binding:
    """Names that a statement gives.

    Attributes:
        names: variables, functions and classes.
        attributes: attributes and methods, as `asked`.
        said: what the value mentions.
        scope: the outermost function around it; 0 where there is none.
        held: whether it is a value: no function, class or method.
    """

    names: set[str]
    attributes: set[str]
    said: set[str]
    scope: int
    held: bool = True


@fields
class Footprint:
    """Definitions, imports and mentions of a file, with the answers computed from them so far."""

    loaded: set[str] = field(default_factory=set)
    """The names and attributes that are read."""
    imports: list[Imported] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    """What assignments, ``with`` blocks and definitions give."""
    read_from: dict[str, set[str]] = field(default_factory=dict)
    """The attributes that are read from what a variable holds, and from those in turn."""
    own: set[str] = field(default_factory=set)
    """What the module's own code mentions, outside its functions and imports."""
    definitions: dict[Key, tuple[str, set[str]]] = field(default_factory=dict)
    """Each function's name, and what it mentions; and `own`, by `OWN_CODE`."""
    methods: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """The methods of each class that are not called by calling or making an object, and what each
    mentions."""
    bodies: dict[str, set[str]] = field(default_factory=dict)
    """Mentions in the body of each class, outside its methods."""
    decorators: dict[str, set[tuple[str, bool]]] = field(default_factory=dict)
    """The names that decorate each function and class of the module, themselves or by a method."""
    filled: dict[str, set[str]] = field(default_factory=dict)
    """What is mentioned where the module's own code changes what a variable holds; by "" where it
    does anything else, as others import it."""
    shared: set[str] = field(default_factory=set)
    """The variables that a function declares to be those of the module."""
    inheriting: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """What each method mentions, and what its class extends."""
    written: set[Place] = field(default_factory=set)
    """What is written to as a whole: by ``+=``, ``[:] =``, ``.data =`` or a method that has the
    name of one which works in place."""
    given: set[Place] = field(default_factory=set)
    """What gets its value otherwise than by an assignment."""
    answers: dict[Any, Any] = field(default_factory=dict)
    called_by_calls: frozenset[str] = frozenset()
    """The methods that calling or starting an object calls."""
    strings: frozenset[str] = frozenset()
    """Strings that are mentioned like names, in quotes."""

    @cached_property
    def mentioned(self) -> set[str]:
        """Every name that is mentioned somewhere outside the imports of the module's own code, and
        each attribute as `asked`, each function as `called`, too."""
        said = self.loaded.union(*(said for _, said in self.definitions.values()))
        return said | {it.removeprefix(".") for it in said}

    @cached_property
    def defined(self) -> set[str]:
        """The functions and classes of the module."""
        return {name for it in self.bindings if not it.held and not it.scope for name in it.names}

    def imported_as(self, name: str) -> list[tuple[str, str]]:
        """The modules, and the names there, of what is imported as `name`."""
        return [(module, there) for module, there, _ in self._by_name.get(name, ())]

    def imports_of(self, among: Set[str]) -> list[Imported]:
        """The imports that may give one of these names."""
        given = (its for name, its in self._by_name.items() if name == "*" or name in among)
        return [it for its in given for it in its]

    @cached_property
    def _by_name(self) -> dict[str, list[Imported]]:
        """The imports, by the name where they are imported."""
        found: dict[str, list[Imported]] = {}
        for it in self.imports:
            found.setdefault(it[2], []).append(it)
        return found

    @cached_property
    def variables(self) -> set[str]:
        """The variables of the module, and of its classes."""
        return {name for it in self.bindings if it.held and not it.scope for name in it.names}

    @cached_property
    def named(self) -> set[str]:
        """What is mentioned, and the functions, classes and methods that are defined."""
        methods = {asked(name) for of_class in self.methods.values() for name in of_class}
        return self.mentioned | self.defined | methods

    @cached_property
    def has_star(self) -> bool:
        """Whether names come in that no import says."""
        return any(name == "*" for _, name, _ in self.imports)

    @cached_property
    def fillers(self) -> dict[str, set[str]]:
        """The functions that put something into containers of the module, and which these are."""
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
        """What gives each name of the module, or of a method."""
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
        """`name`, and what is mentioned behind it in the module, through functions, classes and
        methods, and through `tables`, the variables of the module; or the same of a `method` of the
        class of that name."""
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
        """The methods of the classes that `name` leads to, and of those that these lead to; and all
        that is mentioned behind `name` and in them."""
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
        """`words`, and the names of what mentions one of them, or does in turn; and the same of the
        variables of a function: elsewhere their names mean something else."""
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
        """The functions that mention one of `words`, or what does in turn."""
        found, _ = self.reached(words)
        return {key for key, (_, said) in self.definitions.items() if not found.isdisjoint(said)}


def called(name: str) -> str:
    """What is mentioned where a function or method of that name is called."""
    return f"{name}()"


def writing(place: Place) -> str:
    """What is mentioned where `place` is written to; no name is like it."""
    return f"{place[0]} {place[1]} ="


def asked(name: str) -> str:
    """What is mentioned where an object is asked for its attribute `name`: no variable is that."""
    return f".{name}"


def keyword(name: str) -> str:
    """What is mentioned where a call has a keyword of that name."""
    return f"{name}="


def inherited(name: str) -> str:
    """What is mentioned where a class extends what `name` stands for."""
    return f"({name})"


def filling(name: str) -> str:
    """What is mentioned where something is put into what is called `name`."""
    return f"{name}[]="


def quoted(string: str) -> str:
    """What is mentioned where `string` stands."""
    return f'"{string}"'


def renamed(seen: Footprint, words: Collection[str]) -> set[str]:
    """`words`, and the other names that the imports of a module give them."""
    return {*words} | {
        here
        for module, name, here in seen.imports
        if (name or here != module.partition(".")[0])
        and (name or module).rpartition(".")[2] in words
    }
