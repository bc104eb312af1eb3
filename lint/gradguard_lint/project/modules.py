"""Dotted names and files: which project file an import means."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from gradguard_lint.engine.footprint import ITSELF, Footprint, Way
from gradguard_lint.engine.relevance import imported_bindings, usage_words
from gradguard_lint.project.imports import dotted_names
from gradguard_lint.project.marks import LIBRARY_TOPS, joins_a_group, never_joins_group
from gradguard_lint.project.questions import questions
from gradguard_lint.project.reader import OUTSIDE, Reader, package_root
from gradguard_lint.reading.source import Module
from gradguard_lint.words import absolute_name, outermost_first, words

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeAlias

    from gradguard_lint.engine.ports import What

    Led: TypeAlias = tuple[frozenset[str], list[Way], list[tuple[str, str, str, str]]]
    """What a name leads to in its module; methods of its objects, with what these lead to; and
    imports behind them, as `imported_bindings` returns these."""

ALONE = frozenset((ITSELF,))
"""The answer for a name that does this itself."""

LIBRARIES = LIBRARY_TOPS | words(
    "jaxlib numba matplotlib pytest abc logging time math json re pickle queue subprocess pathlib "
    "warnings"
)
"""Names that mean the library, unless a project module certainly replaces it; standard modules
never are replaced, as then no framework could be imported."""


def _is_package(path: str) -> bool:
    return path.endswith("__init__.py")


def _package_of(name: str, path: str) -> str:
    """The package for relative imports in the module `name`."""
    return name if _is_package(path) else name.rpartition(".")[0]


class Modules:
    """The modules that one entry file can import, read on demand."""

    def __init__(self, entry: str, read: Reader, starters: frozenset[str] = frozenset()) -> None:
        """Resolve imports with `read`; `starters` are further names that start workers."""
        self._questions = questions(starters)
        root, self.name = package_root(entry)
        folder = os.path.dirname(os.path.abspath(entry))
        self.roots = list(dict.fromkeys((folder, root, *read.roots_around(folder))))
        self._inner = "" if folder == root else folder
        """The folder of the program's own package."""
        self._only = ""
        self._around = read.packages_around(root)
        if OUTSIDE & set(folder.split(os.sep)):
            self.roots = [root]
            self._around = {}
            self._only = self.name.partition(".")[0]  # other installed packages aren't part of it
        self.package = _package_of(self.name, entry)
        self._entry = os.path.abspath(entry)
        self._joins: bool | None = None
        self.read = read
        self.used: dict[str, bytes | None] = {}
        """The files that ran, with their bytes."""
        self.asked: dict[str, bytes | None] = {}
        """The files whose names were resolved."""
        self._absent: dict[str, None] = {}
        self._paths: dict[str, str | None] = {}
        self._holding: dict[str, bool] = {}
        self._modules: dict[str, Module | None] = {}
        self._packages: dict[tuple[str, int], set[str]] = {}
        self._importing: dict[tuple[Callable[[Modules, str], bool], str, int], frozenset[str]] = {}
        self._imported: dict[str, Sequence[str]] = {}
        self._origins: dict[tuple[str, int], str | None] = {}
        self._reaching: dict[
            tuple[What, str, str | None], list[tuple[int, int, frozenset[str]]]
        ] = {}
        self._led: dict[tuple[str, str | None, bool], Led] = {}

    def path_of(self, name: str) -> str | None:
        """The file (or namespace folder) of a dotted name."""
        if name in self._paths:
            return self._paths[name]
        found = None
        parts = name.split(".")
        own = not self._only or parts[0] == self._only
        if name and own and all(parts):
            outer = self._around.get(parts[0])
            for root in self.roots if outer is None else (*self.roots, outer):
                if parts[0] in LIBRARIES and not self._stands_in(root, parts[0]):
                    continue
                at = self._found_in(root, parts)
                if at is not None and (at.endswith(".py") or not OUTSIDE & set(parts)):
                    found = at
                    break
        self._paths[name] = found
        return found

    def _stands_in(self, root: str, library: str) -> bool:
        """Whether `library` is a project module below `root`, not the library itself, which has a
        version and files that import their own package."""
        if library in sys.stdlib_module_names or root == self._inner:
            return False  # in a package it has a longer name
        at = self._found_in(root, [library])
        data = self.read(at) if at is not None and at.endswith(".py") else None
        if at is None or data is None:
            return False  # an installed package precedes a folder without code
        self.asked[at] = data
        if _is_package(at):
            return b"__version__" not in data
        tops = {module.partition(".")[0] for module, _, _ in self.read.imported(at, data)}
        return library not in tops

    def _found_in(self, root: str, parts: list[str]) -> str | None:
        """The path of that dotted name below `root`, if its first part is there."""
        first = self.read.found_in(root, parts[0])
        at, base = (
            first if len(parts) == 1 or first[0] is None else self.read.found_in(root, *parts)
        )
        if at is None:
            self._absent[base] = None
        elif at == base:  # a package may get code later
            self._absent[os.path.join(base, "__init__")] = None
        return at

    @property
    def absent(self) -> list[str]:
        """The places that had no module so far."""
        return [place for base in self._absent for place in (base + ".py", base)]

    def is_module(self, name: str) -> bool:
        """Whether the project has a module or package of that name."""
        return self.path_of(name) is not None

    def is_inner(self, package: str, name: str) -> bool:
        """Whether the package's attribute `name` is its submodule, not a definition of the same
        name."""
        inner = f"{package}.{name}" if package else name
        if not self.is_module(inner):
            return False
        seen = self._footprint(package) if package else None
        if seen is None or not self.holds_modules(package):
            return True
        return name not in seen.defined and all(
            f"{absolute_name(it, package)}.{other}".rstrip(".") == inner
            for it, other in seen.imported_as(name)
        )

    def setting_up(self, name: str) -> frozenset[str]:
        """Which of the module and its imports may, on import, use a GPU or set up workers."""
        return self._imported_that(Modules._sets_up_itself, name, 3)

    def _sets_up_itself(self, name: str) -> bool:
        file = self._file_of(name)
        return file is not None and self.read.sets_up(*file)

    def registers(self, name: str) -> bool:
        """Whether importing the module adds its definitions to a container of another module, by
        that one's decorator."""
        file = self._file_of(name)
        decorators = self.read.decorators(*file) if file is not None else ()
        if file is None or not decorators:
            return False
        package = self._package(name)
        return any(
            self._fills(absolute_name(module, package), there, 2, method=method)
            for module, there, here in self.read.imported(*file)
            for it, method in decorators
            if it == here
        )

    def brings_registered(self, name: str) -> bool:
        """Whether the module, or one that it imports, registers definitions."""
        return bool(self._imported_that(Modules.registers, name, 2))

    def _imported_that(
        self, does: Callable[[Modules, str], bool], name: str, depth: int
    ) -> frozenset[str]:
        """Which of the module and its imports, down to `depth`, satisfy `does`."""
        found = self._importing.get((does, name, depth))
        if found is None:
            found = frozenset((name,)) if does(self, name) else frozenset()
            inner = self._imported_by(name) if depth else ()
            found = found.union(*(self._imported_that(does, it, depth - 1) for it in inner))
            self._importing[does, name, depth] = found
        return found

    def _imported_by(self, name: str) -> Sequence[str]:
        """Modules that the module imports, with their packages."""
        found = self._imported.get(name)
        if found is None:
            file = self._file_of(name)
            inner: Iterable[str] = ()
            if file is not None:
                inner = self.read.imported_modules(*file, self._package(name))
            found = self._imported[name] = [*filter(self.is_module, inner)]
        return found

    def origin(self, name: str, depth: int = 4) -> str | None:
        """The full name of the definition that `name` refers to, also through re-exports; None if
        there is none."""
        if (name, depth) not in self._origins:
            self._origins[name, depth] = self._found_as(name, depth)
        return self._origins[name, depth]

    def _found_as(self, name: str, depth: int) -> str | None:
        module, _, own = name.rpartition(".")
        file = self._file_of(module) if module else None
        if file is None or (os.fsencode(own) not in file[1] and b"import *" not in file[1]):
            return None
        seen = self._footprint(module)
        if seen is None:
            return None
        if own in seen.defined:
            return name
        package = self._package(module)
        stars = ((it, own) for it, _ in seen.imported_as("*"))
        given = [*seen.imported_as(own), *stars] if depth else []
        inner = (f"{absolute_name(it, package)}.{other}" for it, other in given)
        return next(filter(None, (self.origin(it, depth - 1) for it in inner)), None)

    def _fills(self, name: str, given: str, depth: int, *, method: bool) -> bool:
        """Whether the module's attribute `given` is a function that fills a container, or an object
        whose `method` may."""
        seen = self._footprint(name)
        if seen is None:
            return False
        if given in seen.defined:
            return given in seen.fillers
        if method and given in seen.variables:
            return True
        package = self._package(name)
        return bool(depth) and any(
            self._fills(absolute_name(it, package), other, depth - 1, method=method)
            for it, other in seen.imported_as(given)
        )

    def reaches(
        self, what: What, name: str, wanted: str | None = None, far: tuple[int, int] | None = None
    ) -> frozenset[str]:
        """Whether the module or its attribute `wanted` does this, directly or through calls:
        `ITSELF`, or methods of its objects; `far`: the most further modules, and how many of them
        may not do it themselves."""
        question = self._questions[what]
        return self._reaches(what, name, wanted, *(far or (question.over, question.through)))

    def _reaches(
        self, what: What, name: str, wanted: str | None, depth: int, through: int
    ) -> frozenset[str]:
        if wanted is not None and self.holds_modules(name) and self.is_inner(name, wanted):
            return self._reaches(what, f"{name}.{wanted}", None, depth, through)
        known = self._reaching.setdefault((what, name, wanted), [])
        for far, over, given in known:
            if (far, over) == (depth, through):
                return given
            if not given and far >= depth and over >= through:
                return given  # nothing farther away, so nothing nearer
            if ITSELF in given and far <= depth and over <= through:
                return given
        found = self._found_to_reach(what, name, wanted, depth, through)
        known.append((depth, through, found))
        return found

    def _found_to_reach(
        self, what: What, name: str, wanted: str | None, depth: int, through: int
    ) -> frozenset[str]:
        question = self._questions[what]
        seen = self._footprint(name)
        if seen is None:
            return frozenset()
        words = seen.answers.get(what)
        if words is None:
            words = seen.answers[what] = question.shows(seen)
        if words and wanted is None:
            return ALONE
        if not words and not self.holds_modules(name) and not seen.has_star:
            if not through or wanted is None:
                return frozenset()
            if wanted not in seen.defined and not seen.imported_as(wanted):
                return frozenset()
            through -= 1

        def part(inner: str, item: str) -> frozenset[str]:
            if not self.is_module(inner):
                return ALONE if question.has(inner, item) else frozenset()
            if not depth or inner == name:
                return frozenset()
            return self._reaches(what, inner, item or None, depth - 1, through)

        lead, ways, behind = self._leading(name, seen, wanted, tables=question.tables)
        if wanted is None:
            found = any(part(inner, item) for _, _, inner, item in behind)
            return ALONE if found else frozenset()
        if not lead.isdisjoint(words):
            return ALONE
        given: dict[str, frozenset[str]] = {}
        for word, _, inner, item in behind:
            does = part(inner, item)
            if does:
                given[word] = given.get(word, does) | does
        if wanted in given and wanted not in seen.defined:
            return given[wanted]
        words = words.union(*(usage_words(word, does) for word, does in given.items()))
        if not lead.isdisjoint(words):
            return ALONE
        if not wanted:
            return frozenset()  # importing it creates no object
        inherited = (does - ALONE for does in given.values())
        return frozenset({it for it, way in ways if not way.isdisjoint(words)}.union(*inherited))

    def _leading(self, name: str, seen: Footprint, wanted: str | None, *, tables: bool) -> Led:
        """What `wanted` (None: anything) leads to in the module, methods of its objects, and
        imports behind them."""
        key = (name, wanted, tables)
        if key not in self._led:
            lead, among, imports = frozenset[str](), None, seen.imports
            ways: list[Way] = []
            if wanted is not None:
                lead = seen.leads_to(wanted, tables=tables)
                ways, among = seen.ways_from(wanted, tables=tables)
                imports = seen.imports_of(among)
            package = self._package(name)
            behind = (imported_bindings(self, seen, package, it, among) for it in imports)
            self._led[key] = lead, ways, [*dict.fromkeys(it for of in behind for it in of)]
        return self._led[key]

    def behind(self, name: str, wanted: str | None, depth: int) -> Iterator[str]:
        """Files of modules that `wanted` of the module leads to, at most `depth` imports away."""
        seen = self._footprint(name) if depth else None
        if seen is None:
            return
        for _, _, inner, item in self._leading(name, seen, wanted, tables=True)[2]:
            file = self._file_of(inner)
            if file is not None and inner != name:
                yield file[0]
                yield from self.behind(inner, item or None, depth - 1)

    def may_join_a_group(self) -> bool:
        """Whether the entry file, or a module it imports, may join a process group: by its own
        call, or by a package not known to be harmless."""
        if self._joins is None:
            self._joins = self._found_to_join()
        return self._joins

    def _found_to_join(self) -> bool:
        data = self.read(self._entry)
        waiting = [(self._entry, data, self.package)]
        seen: set[str] = set()
        while waiting:
            path, data, package = waiting.pop()
            if data is None or joins_a_group(data):
                return True
            for imported in dotted_names(self.read.imported(path, data)):
                name = absolute_name(imported, package)
                top = name.partition(".")[0]
                if not self.is_module(top):
                    if not never_joins_group(top):
                        return True
                    continue
                for outer in outermost_first(name):
                    at = None if outer in seen else self.path_of(outer)
                    seen.add(outer)
                    if at is not None and at.endswith(".py"):
                        self.asked[at] = self.read(at)
                        waiting.append((at, self.asked[at], _package_of(outer, at)))
        return False

    def packages_of(self, name: str, depth: int = 1) -> set[str]:
        """External packages that the module imports, directly or through project modules."""
        key = (name, depth)
        if key not in self._packages:
            self._packages[key] = self._found_packages(*key)
        return self._packages[key]

    def _found_packages(self, name: str, depth: int) -> set[str]:
        file = self._file_of(name)
        found: set[str] = set()
        for module, given, _ in self.read.imported(*file) if file is not None else ():
            inner = absolute_name(module, self._package(name))
            if given and self.is_module(f"{inner}.{given}"):
                inner = f"{inner}.{given}"
            if not self.is_module(inner):
                found.add(inner.partition(".")[0])
            elif depth and inner != name:
                found |= self.packages_of(inner, depth - 1)
        return found

    def _file_of(self, name: str) -> tuple[str, bytes] | None:
        """The file of the module with its bytes; None if it has no code."""
        path = self.path_of(name)
        if path is None or not path.endswith(".py"):
            return None
        data = self.asked[path] = self.read(path)
        return None if data is None else (path, data)

    def _package(self, name: str) -> str:
        """The package for relative imports in the module."""
        return name if self.holds_modules(name) else name.rpartition(".")[0]

    def holds_modules(self, name: str) -> bool:
        """Whether it is a package, or a folder without code."""
        if name not in self._holding:
            path = self.path_of(name)
            holds = path is not None and (not path.endswith(".py") or _is_package(path))
            self._holding[name] = holds
        return self._holding[name]

    def _footprint(self, name: str) -> Footprint | None:
        """The footprint of the module; None if it has no code."""
        file = self._file_of(name)
        return self.read.footprint(*file, name, self._package(name)) if file is not None else None

    def load(self, name: str) -> Module | None:
        """The parsed module; None if there is nothing to follow."""
        if name in self._modules:
            return self._modules[name]
        self._modules[name] = None
        file = self._file_of(name)
        if file is None:
            return None
        path, data = file
        self.used[path] = data
        if not _is_package(path) and not self.read.is_worth_following(path, data):
            return None
        module = self.read.parsed(path, data, name, self._package(name))
        self._modules[name] = module
        return module

    def loaded(self) -> list[Module]:
        """The modules that were parsed."""
        return [module for module in self._modules.values() if module is not None]
