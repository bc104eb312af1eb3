"""What files import from each other: told from their bytes, as far as the search needs it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from gradguard_lint.project.file_bytes import File
from gradguard_lint.project.imports import Imported, below

PACKAGES = 1
"""How many packages within packages hand on what they import."""

Project = Callable[[str, str], "tuple[str, bytes] | None"]
"""``project(name, path)``: the file and the bytes of what the module at `path` imports as
`name`."""


_BINDS = rb"(?:\b(?:def|class)[ \t]+|\n)%s\b"
"""What gives a name its value."""


class Links:
    """The files that are checked, and the modules of their project.

    Attributes:
        files: those that are checked, by path.
    """

    def __init__(self, contents: Mapping[str, bytes], project: Project) -> None:
        self.files = {path: File(data) for path, data in contents.items()}
        self._project = project
        self._others: dict[str, File] = {}
        self._paths: dict[File, str] = {}
        self._imported: dict[str, list[File]] = {}
        self._asked: dict[str, dict[File, set[str] | None]] = {}
        self._given: dict[tuple[str, int], list[File]] = {}
        self._sources: dict[tuple[str, str, int], list[tuple[File, str | None]]] = {}

    def path_of(self, file: File) -> str:
        """Where a module lies that something imports."""
        return self._paths[file]

    def followed(self, name: str, path: str) -> tuple[str, File] | None:
        """The module that the one at `path` imports as `name`, and where it lies."""
        found = self._project(name, path)
        if found is None:
            return None
        other = self.files.get(found[0]) or self._others.get(found[0])
        if other is None:
            other = self._others[found[0]] = File(found[1])
        self._paths[other] = found[0]
        return found[0], other

    def imported(self, path: str, names: Iterable[str] | None = None) -> list[File]:
        """The modules of the project that `path` imports (as `names`), and what the packages among
        them give."""
        if names is not None:
            return self._modules(path, names)
        if path not in self._imported:
            self._imported[path] = self._modules(path, self._file(path).imports)
        return self._imported[path]

    def asked(self, path: str) -> dict[File, set[str] | None]:
        """The modules of the project that `path` imports, and those that give the packages among
        them what it takes, each with the names that it takes of it, or None for any."""
        if path not in self._asked:
            self._asked[path] = self.asked_by(path, self._file(path).imported_names)
        return self._asked[path]

    def asked_by(self, path: str, imported: Iterable[Imported]) -> dict[File, set[str] | None]:
        """The same, of some of its imports."""
        file = self._file(path)
        found: dict[File, set[str] | None] = {}
        for base, name, here in imported:
            if name == "*":
                self._ask(found, self.followed(base, path), None)
            elif name:
                self._ask(found, self.followed(base, path), {name})
                module = self.followed(below(base, name), path)
                if module is not None:
                    self._ask(found, module, file.taken(here))
            else:
                module = self.followed(base, path)
                if module is not None:
                    self._ask(found, module, _taken_below(file.taken(here), base, here))
        return found

    def importers(self, paths: Collection[str]) -> list[str]:
        """The checked files that import one of those at `paths`, over any of the others, the
        nearest first."""
        wanted = {os.path.abspath(path) for path in paths}
        found: dict[str, None] = {}
        while wanted:
            names = {module_name(path) for path in wanted}
            names |= {module_name(os.path.dirname(path)) for path in wanted}
            near = [
                path
                for path, file in self.files.items()
                if path not in found
                and not names.isdisjoint(file.words)
                and any(
                    os.path.abspath(self._paths[other]) in wanted for other in self.imported(path)
                )
            ]
            found.update(dict.fromkeys(near))
            wanted = set(map(os.path.abspath, near))
        return list(found)

    def _file(self, path: str) -> File:
        return self.files.get(path) or self._others[path]

    def _modules(self, path: str, names: Iterable[str]) -> list[File]:
        named = dict.fromkeys(self.followed(name, path) for name in names)
        found: dict[File, None] = {}
        for other in named:
            if other is not None:
                found[other[1]] = None
                if other[0].endswith("__init__.py"):
                    found.update(dict.fromkeys(self._given_by(*other)))
        return list(found)

    def _given_by(self, path: str, package: File, depth: int = PACKAGES) -> list[File]:
        """The modules that a package imports, and those of the packages among them."""
        known = self._given.get((path, depth))
        if known is None:
            known = self._given[path, depth] = []
            for name in package.imports:
                other = self.followed(name, path)
                if other is None:
                    continue
                known.append(other[1])
                if depth and other[0] != path and other[0].endswith("__init__.py"):
                    known += self._given_by(*other, depth - 1)
        return known

    def _ask(
        self,
        found: dict[File, set[str] | None],
        module: tuple[str, File] | None,
        asked: set[str] | None,
    ) -> None:
        """Remember that these dotted names are taken of `module`."""
        if module is None:
            return
        path, file = module
        if asked is None:
            found[file] = None
            if path.endswith("__init__.py"):
                found.update(dict.fromkeys(self._given_by(path, file)))
            return
        found.setdefault(file, set())  # to import it may be enough
        for name in asked:
            _remember(found, file, name)
            if path.endswith("__init__.py"):
                for other, there in self._sources_of(path, file, name):
                    _remember(found, other, there)

    def _sources_of(
        self, path: str, package: File, dotted: str, depth: int = PACKAGES
    ) -> list[tuple[File, str | None]]:
        """The modules from which a package has the `dotted` name, and as what; None for all that
        one has."""
        known = self._sources.get((path, dotted, depth))
        if known is not None:
            return known
        known = self._sources[path, dotted, depth] = []
        name, _, rest = dotted.partition(".")

        def take(module: tuple[str, File] | None, there: str) -> None:
            if module is None:
                return
            known.append((module[1], there or None))
            if depth and module[0] != path and module[0].endswith("__init__.py"):
                if there:
                    known.extend(self._sources_of(*module, there, depth - 1))
                else:
                    known.extend((it, None) for it in self._given_by(*module, depth - 1))

        for base, given, here in package.imported_names:
            module = self.followed(base, path) if given == "*" or here == name else None
            if given == "*":
                if module is not None and os.fsencode(name) in module[1].data:
                    take(module, dotted)
            elif here == name and not given:
                take(module, rest)
            elif here == name:
                take(module, given)
                take(self.followed(below(base, given), path), rest)
        if not known:
            take(self.followed(f".{name}", path), rest)
        if not known and not re.search(_BINDS % re.escape(os.fsencode(name)), package.data):
            files = self._given_by(path, package)
            known += [(file, name) for file in files if os.fsencode(name) in file.data]
        return known


def module_name(path: str) -> bytes:
    """The last part of the name that the module at `path` has."""
    folder, name = os.path.split(path)
    if name == "__init__.py":
        name = os.path.basename(os.path.abspath(folder))
    return os.fsencode(name.removesuffix(".py"))


def _remember(found: dict[File, set[str] | None], file: File, name: str | None) -> None:
    """Remember that `file` is asked for `name`, too; None for any."""
    before = found.get(file, set())
    if name is None or before is None:
        found[file] = None
    else:
        found[file] = before | {name.partition(".")[0]}


def _taken_below(taken: set[str] | None, module: str, here: str) -> set[str] | None:
    """What is taken of `module`, of all that is taken of what is called `here`: a package above
    it, perhaps."""
    if taken is None or here != module.partition(".")[0]:
        return taken
    _, _, rest = module.partition(".")
    if not rest:
        return taken
    if rest in taken:
        return None
    return {name[len(rest) + 1 :] for name in taken if name.startswith(f"{rest}.")}
