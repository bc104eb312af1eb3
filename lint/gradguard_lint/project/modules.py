"""Dotted names and files: which file of the project an import means."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.definitions import ALONE, ITSELF, Names
from gradguard_lint.project.imports import absolute_name
from gradguard_lint.project.marks import LIBRARY_TOPS, joins_a_group, joins_none, worth_following
from gradguard_lint.project.sought import (
    CHANGING,
    FITTING,
    LOADING,
    MATTERING,
    REMEMBERING,
    STARTING,
    STARTING_PROCESSES,
    TOGETHER,
    TRAINING,
    Sought,
)
from gradguard_lint.reading.source import Module, SourceError, parse
from gradguard_lint.words import outermost_first, words

LIBRARIES = LIBRARY_TOPS | words(
    "jaxlib numba matplotlib pytest abc logging time math json re pickle queue subprocess pathlib "
    "warnings"
)
"""Names that mean the library, but where a module of the project certainly stands in its place: in
place of a standard one none does, or no framework could be imported."""

OUTSIDE = frozenset({"site-packages", "dist-packages", "node_modules"})


def package_root(path: str) -> tuple[str, str]:
    """The folder that the import of `path` starts from, and its dotted name from there."""
    folder, base = os.path.split(os.path.abspath(path))
    stem = base.removesuffix(".py").removesuffix(".ipynb")
    parts = [] if stem == "__init__" else [stem]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
        if not name:
            break
    return folder, ".".join(parts)


def is_project(folder: str) -> bool:
    """Whether the settings or the repository of a project are in `folder`."""
    markers = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
    return any(os.path.exists(os.path.join(folder, marker)) for marker in markers)


def _is_package(path: str) -> bool:
    return os.path.basename(path) == "__init__.py"


def _package_of(name: str, path: str) -> str:
    """The package that the relative imports of the module `name` start from."""
    return name if _is_package(path) else name.rpartition(".")[0]


def _found_at(base: str) -> str | None:
    if os.path.isfile(base + ".py"):
        return base + ".py"
    if not os.path.isdir(base):
        return None
    code = os.path.join(base, "__init__.py")
    return code if os.path.isfile(code) else base


class Modules:
    """The modules that one entry file can import, read when they are asked for."""

    def __init__(self, entry: str, read: Reader) -> None:
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
            self._only = self.name.partition(".")[0]  # what is installed beside it is no part of it
        self.package = _package_of(self.name, entry)
        self._entry = os.path.abspath(entry)
        self._joins: bool | None = None
        self.read = read
        self.used: dict[str, bytes | None] = {}
        self._absent: dict[str, None] = {}
        self._paths: dict[str, str | None] = {}
        self._modules: dict[str, Module | None] = {}
        self._packages: dict[tuple[str, int], set[str]] = {}
        self._importing: dict[tuple[Callable[[Modules, str], bool], str, int], frozenset[str]] = {}
        self._imported: dict[str, Sequence[str]] = {}
        self._origins: dict[tuple[str, int], str | None] = {}
        self._giving: dict[
            tuple[Sought, str, str | None], list[tuple[int, int, frozenset[str]]]
        ] = {}

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
        """Whether an import of `library` finds a module of the project below `root`, and not the
        library itself: that tells its version, and no other file imports what has its own name."""
        if library in sys.stdlib_module_names or root == self._inner:
            return False  # in a package it has a longer name
        at = self._found_in(root, [library])
        data = self.read(at) if at is not None and at.endswith(".py") else None
        if at is None or data is None:
            return False  # a folder without code comes after what is installed
        self.used[at] = data
        if _is_package(at):
            return b"__version__" not in data
        tops = {name.partition(".")[0] for name in self.read.names(at, data).imports}
        return library not in tops

    def _found_in(self, root: str, parts: list[str]) -> str | None:
        """What of that dotted name is below `root`; where its first part is not, nothing is."""
        first = self.read.found_in(root, parts[0])
        at, base = (
            first if len(parts) == 1 or first[0] is None else self.read.found_in(root, *parts)
        )
        if at is None:
            self._absent[base] = None
        elif at == base:  # its own code may come
            self._absent[os.path.join(base, "__init__")] = None
        return at

    @property
    def absent(self) -> list[str]:
        """The places where there was no module, so far."""
        return [place for base in self._absent for place in (base + ".py", base)]

    def is_module(self, name: str) -> bool:
        """Whether the project has a module or package of that name."""
        return self.path_of(name) is not None

    def is_inner(self, package: str, name: str) -> bool:
        """Whether what the package gives as `name` is its module of that name: it may hand on
        something else that is called as the module is that has it."""
        inner = f"{package}.{name}" if package else name
        if not self.is_module(inner):
            return False
        file = self._file_of(package) if package else None
        if file is None or not _is_package(file[0]):
            return True
        names = self.read.names(*file)
        if names.definitions.have(name):
            return False
        given = (
            f"{absolute_name(it, package)}.{other}" if other else absolute_name(it, package)
            for it, other in names.imported_as(name)
        )
        return all(it == inner for it in given)

    def starts_workers(self, name: str, wanted: str | None = None) -> frozenset[str]:
        """What of the module of that name, or of what it gives as `wanted`, mentions workers:
        `ITSELF`, or methods of the objects that it gives."""
        return self._gives(STARTING, name, wanted)

    def starts_processes(self, name: str, wanted: str | None = None) -> bool:
        """Whether some of these workers are no threads, or may be none."""
        return bool(self._gives(STARTING_PROCESSES, name, wanted))

    def makes_loaders(self, name: str, wanted: str | None = None) -> frozenset[str]:
        """As `starts_workers`, for what makes loaders with workers, which others iterate."""
        return self._gives(LOADING, name, wanted)

    def remembers(self, name: str, wanted: str | None = None) -> frozenset[str]:
        """As `starts_workers`, for what keeps the results of functions in files."""
        return self._gives(REMEMBERING, name, wanted)

    def fits_models(self, name: str, wanted: str | None = None) -> frozenset[str]:
        """As `starts_workers`, for what trains or asks models."""
        return self._gives(FITTING, name, wanted)

    def trains(self, name: str, wanted: str | None = None) -> bool:
        """Whether the module of that name, or what it gives as `wanted`, takes gradients."""
        return bool(self._gives(TRAINING, name, wanted))

    def trains_together(self, name: str, wanted: str | None = None) -> bool:
        """Whether the module of that name, or what it gives as `wanted`, calls what processes do
        that train together."""
        return bool(self._gives(TOGETHER, name, wanted))

    def matters(self, name: str, wanted: str | None = None) -> bool:
        """Whether the module of that name, or what it gives as `wanted`, mentions what workers may
        have a pitfall with."""
        return bool(self._gives(MATTERING, name, wanted))

    def changes_what_threads_share(self, name: str, wanted: str | None = None) -> bool:
        """Whether the module of that name, or what it gives as `wanted`, may change what threads
        share, or a mode that they do not have."""
        return bool(self._gives(CHANGING, name, wanted))

    def setting_up(self, name: str) -> frozenset[str]:
        """Which of the module of that name, and what it imports, may ask for a GPU as they are
        imported, or set up what workers find."""
        return self._imported_that(Modules._sets_up_itself, name, 3)

    def _sets_up_itself(self, name: str) -> bool:
        file = self._file_of(name)
        return file is not None and self.read.names(*file).sets_up

    def registers(self, name: str) -> bool:
        """Whether importing the module of that name puts what it defines into a container of
        another one, by a decorator from there."""
        file = self._file_of(name)
        if file is None:
            return False
        package = _package_of(name, file[0])
        decorators = self.read.names(*file).decorated_by
        return any(
            self._fills(absolute_name(it, package), given, 2, method=method)
            for it, given, method in decorators
        )

    def brings_registered(self, name: str) -> bool:
        """Whether the module of that name, or one that it imports, registers what it defines."""
        return bool(self._imported_that(Modules.registers, name, 2))

    def _imported_that(
        self, does: Callable[[Modules, str], bool], name: str, depth: int
    ) -> frozenset[str]:
        """Which of the module of that name, and those that it imports, through `depth` others, do
        that."""
        found = self._importing.get((does, name, depth))
        if found is None:
            found = frozenset((name,)) if does(self, name) else frozenset()
            inner = self._imported_by(name) if depth else ()
            found = found.union(*(self._imported_that(does, it, depth - 1) for it in inner))
            self._importing[does, name, depth] = found
        return found

    def _imported_by(self, name: str) -> Sequence[str]:
        """The modules that the module of that name imports, and the packages around them."""
        found = self._imported.get(name)
        if found is None:
            file = self._file_of(name)
            inner: dict[str, None] = {}
            if file is not None:
                package = _package_of(name, file[0])
                imported = (absolute_name(it, package) for it in self.read.names(*file).imports)
                inner = dict.fromkeys(part for it in imported for part in outermost_first(it))
            found = self._imported[name] = [*filter(self.is_module, inner)]
        return found

    def origin(self, name: str, depth: int = 4) -> str | None:
        """The full name under which the project defines the function or class that others know by
        the full name `name`: packages and modules may pass it on; None where it does not."""
        if (name, depth) not in self._origins:
            self._origins[name, depth] = self._found_as(name, depth)
        return self._origins[name, depth]

    def _found_as(self, name: str, depth: int) -> str | None:
        module, _, own = name.rpartition(".")
        file = self._file_of(module) if module else None
        if file is None:
            return None
        names, package = self.read.names(*file), _package_of(module, file[0])
        if names.definitions.have(own):
            return name
        given = [*names.imported_as(own), *((it, own) for it, _ in names.imported_as("*"))]
        inner = (f"{absolute_name(it, package)}.{other}" for it, other in given if depth)
        return next(filter(None, (self.origin(it, depth - 1) for it in inner)), None)

    def _fills(self, name: str, given: str, depth: int, *, method: bool) -> bool:
        """Whether what a module gives as `given` is a function that fills a container, or an object
        whose `method` may."""
        file = self._file_of(name)
        if file is None:
            return False
        names = self.read.names(*file)
        if names.definitions.have(given):
            return given.encode() in names.definitions.fillers
        if method and names.definitions.beside(given):
            return True
        package = _package_of(name, file[0])
        return bool(depth) and any(
            self._fills(absolute_name(it, package), other, depth - 1, method=method)
            for it, other in names.imported_as(given)
        )

    def _gives(
        self,
        what: Sought,
        name: str,
        wanted: str | None,
        depth: int | None = None,
        through: int | None = None,
    ) -> frozenset[str]:
        depth = what.over if depth is None else depth
        through = what.through if through is None else through
        path = self.path_of(name)
        holds_modules = path is not None and (not path.endswith(".py") or _is_package(path))
        if wanted is not None and holds_modules and self.is_inner(name, wanted):
            return self._gives(what, f"{name}.{wanted}", None, depth, through)
        known = self._giving.setdefault((what, name, wanted), [])
        for far, over, given in known:
            if (far, over) == (depth, through):
                return given
            if not given and far >= depth and over >= through:
                return given  # nothing farther away, so nothing nearer
            if ITSELF in given and far <= depth and over <= through:
                return given
        found = self._found_to_give(what, name, wanted, depth, through)
        known.append((depth, through, found))
        return found

    def _found_to_give(
        self, what: Sought, name: str, wanted: str | None, depth: int, through: int
    ) -> frozenset[str]:
        file = self._file_of(name)
        if file is None:
            return frozenset()
        path, data = file
        names = self.read.names(path, data)
        if names.tell(what.tells):
            found = ALONE if wanted is None else names.definitions.give(wanted, what.tells)
            if ITSELF in found:
                return found
        elif not _is_package(path) and not names.have_star:
            if not through or wanted is None:
                return frozenset()
            if not (names.definitions.have(wanted) or names.imported_as(wanted)):
                return frozenset()
            through -= 1
        package = _package_of(name, path)
        given: set[str] = set()
        words: set[bytes] = set()
        for inner, item, word in self._behind(names, package, wanted):
            part: frozenset[str] = frozenset()
            if not self.is_module(inner):
                part = ALONE if what.has(inner, item or "") else part
            elif depth and inner != name:
                part = self._gives(what, inner, item, depth - 1, through)
            if part and wanted is None:
                return ALONE
            given |= part
            words.update(word if it == ITSELF else f".{it}".encode() for it in part)
        if wanted is None:
            return frozenset()
        if given and not names.definitions.have(wanted):
            return frozenset(given)
        given.discard(ITSELF)
        return names.definitions.give(wanted, what.tells, frozenset(words)) | given

    def _behind(
        self, names: Names, package: str, wanted: str | None
    ) -> Iterator[tuple[str, str | None, bytes]]:
        """What `wanted` (None: anything) of a module may hang on in others: the module, the name
        there (None: anything), and what is said where it is used."""
        for module, item, word in names.behind(wanted):
            inner = absolute_name(module, package)
            within = f"{inner}.{item}" if item else inner
            if item == "*":
                yield inner, wanted, word
            elif not (self.is_inner(inner, item) if item else self.is_module(inner)):
                yield inner, item or None, word
            else:
                plain = not item and word.decode() == inner.partition(".")[0]
                yield from self._asked_of(names, within, inner if plain else word.decode())

    def _asked_of(
        self, names: Names, module: str, said: str
    ) -> Iterator[tuple[str, str | None, bytes]]:
        """The same of a module that is called `said` there: what it is asked for, and what those of
        its modules are that it gives."""
        for name in names.asked_of(said):
            inner = (
                [*self._asked_of(names, f"{module}.{name}", f"{said}.{name}")]
                if (self.is_inner(module, name))
                else ()
            )
            yield from inner or [(module, name, f".{name}".encode())]

    def may_join_a_group(self) -> bool:
        """Whether the entry file, or a module that it leads to, may join processes that train
        together: by a call of its own, or by a package that is not known to do no such thing."""
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
            for imported in self.read.names(path, data).imports:
                name = absolute_name(imported, package)
                top = name.partition(".")[0]
                if not self.is_module(top):
                    if not joins_none(top):
                        return True
                    continue
                for outer in outermost_first(name):
                    at = None if outer in seen else self.path_of(outer)
                    seen.add(outer)
                    if at is not None and at.endswith(".py"):
                        self.used[at] = self.read(at)
                        waiting.append((at, self.used[at], _package_of(outer, at)))
        return False

    def packages_of(self, name: str, depth: int = 1) -> set[str]:
        """The packages from outside the project that the module of that name imports, or one of
        those of the project that it imports."""
        key = (name, depth)
        if key not in self._packages:
            self._packages[key] = self._found_packages(*key)
        return self._packages[key]

    def _found_packages(self, name: str, depth: int) -> set[str]:
        file = self._file_of(name)
        if file is None:
            return set()
        path, data = file
        found: set[str] = set()
        package = _package_of(name, path)
        for module, given, _ in self.read.names(path, data).behind(None):
            inner = absolute_name(module, package)
            if given and self.is_module(f"{inner}.{given}"):
                inner = f"{inner}.{given}"
            if not self.is_module(inner):
                found.add(inner.partition(".")[0])
            elif depth and inner != name:
                found |= self.packages_of(inner, depth - 1)
        return found

    def _file_of(self, name: str) -> tuple[str, bytes] | None:
        """The file of the module of that name, and its bytes; None where it has no code."""
        path = self.path_of(name)
        if path is None or not path.endswith(".py"):
            return None
        data = self.used[path] = self.read(path)
        return None if data is None else (path, data)

    def load(self, name: str) -> Module | None:
        """The module of that name, parsed; None where there is nothing to follow."""
        if name in self._modules:
            return self._modules[name]
        self._modules[name] = None
        file = self._file_of(name)
        if file is None:
            return None
        path, data = file
        if len(data) > 20_000 and not _is_package(path) and not worth_following(data):
            return None
        module = self.read.parsed(path, data, name, _package_of(name, path))
        self._modules[name] = module
        return module

    def loaded(self) -> list[Module]:
        """The modules that were parsed."""
        return [module for module in self._modules.values() if module is not None]


class Reader:
    """Reads files once; None where a file cannot be used.

    Args:
        tops: the folders that were asked for, and the current one, as absolute paths: modules are
            imported from these, too, where nothing shows the folder of a project.
    """

    def __init__(self, tops: Sequence[str] = ()) -> None:
        self.tops = tuple(dict.fromkeys(tops))
        self.known: dict[str, bytes | None] = {}
        self.modules: dict[tuple[str, str], Module | None] = {}
        self._projects: dict[str, str] = {}
        self._roots: dict[str, tuple[str, ...]] = {}
        self._around: dict[str, dict[str, str]] = {}
        self._found: dict[tuple[str, ...], tuple[str | None, str]] = {}
        self._names: dict[str, Names] = {}

    def project_of(self, folder: str) -> str:
        """The folder of the project around `folder`, looked for once; `folder`, where there is
        none."""
        return self._project_around(folder) or folder

    def _project_around(self, folder: str) -> str:
        if folder not in self._projects:
            above = os.path.dirname(folder)
            around = "" if above == folder else self._project_around(above)
            self._projects[folder] = folder if is_project(folder) else around
        return self._projects[folder]

    def roots_around(self, folder: str) -> tuple[str, ...]:
        """The folders around `folder` that modules of its project are imported from."""
        known = self._roots.get(folder)
        if known is None:
            project = self._project_around(folder)
            homes = [project] if project else (self._tops_around(folder) or [folder])
            known = self._roots[folder] = tuple(
                os.path.join(home, name) if name else home
                for home in homes
                for name in ("", "src", "lib")
            )
        return known

    def _tops_around(self, folder: str) -> list[str]:
        """The folders that were asked for and `folder` is in, or is."""
        within = folder + os.sep
        return [top for top in self.tops if within.startswith(os.path.join(top, ""))]

    def packages_around(self, root: str) -> Mapping[str, str]:
        """What the modules of `root` may be imported as a part of, without a file that says so:
        the names of the folders around them, up to that of the project, or the outermost one that
        was asked for; each with the folder that it is in, the nearest where names are equal."""
        known = self._around.get(root)
        if known is None:
            tops = self._tops_around(root)
            last = self._project_around(root) or min(tops, key=len, default=root)
            known = self._around[root] = {}
            folder = root
            while folder:
                outer, name = os.path.split(folder)
                known.setdefault(name, outer)
                folder = outer if outer != folder and len(outer) >= len(last) else ""
        return known

    def found_in(self, root: str, *parts: str) -> tuple[str | None, str]:
        """The module or package that is called so below `root`, or the folder where it has no code;
        and where it was looked for, once."""
        key = (root, *parts)
        known = self._found.get(key)
        if known is None:
            base = os.path.join(root, *parts)
            known = self._found[key] = _found_at(base), base
        return known

    def over(self, contents: Mapping[str, bytes]) -> Reader:
        """A reader of the same files, but for those that hold `contents` instead."""
        other = Reader(self.tops)
        other.known = {**self.known, **contents}
        other.modules = {
            key: module for key, module in self.modules.items() if key[0] not in contents
        }
        other._names = {path: it for path, it in self._names.items() if path not in contents}
        return other

    def names(self, path: str, data: bytes) -> Names:
        """What gives the names of the module at `path`, looked for once."""
        if path not in self._names:
            self._names[path] = Names(data)
        return self._names[path]

    def parsed(self, path: str, data: bytes, name: str, package: str) -> Module | None:
        """The module at `path`, parsed once; None where it is no Python (its own check says so)."""
        key = (path, name)
        if key not in self.modules:
            try:
                self.modules[key] = parse(data, path, name, package)
            except SourceError:
                self.modules[key] = None
        return self.modules[key]

    def __call__(self, path: str) -> bytes | None:
        if path not in self.known:
            try:
                self.known[path] = read(path)
            except Unusable:
                self.known[path] = None
        return self.known[path]
